-- The permits of one request, from all of its limits or from none: what acquire.lua does, and acquire_in_order.lua several times.
--
-- Uses NUMBER, of limits; FIRST_LIMIT; CORRECTS; id, HORIZON_US and CLAIM_US as in acquire.lua; and of its own
-- includes limits, joint, binding, allowed and reply. For these it makes soonest, in_line and latest.
-- Gives the reply: it ends the script, or the function that it stands in.
--!include fast_path.lua
local soonest, in_line, latest = now, id, now + CLAIM_US
--!include read_limits.lua
--!include check_all_limits.lua
--!include reply.lua

if allowed then
    for i = 1, #limits do
        limits[i].algorithm.commit(limits[i], now, id, joint)
    end
    return reply(1, joint, joint - now, 0)
end

-- The request asked for a slot only, and needs none: a permit can be had now.
if binding == 0 then return reply(0, now, 0, 0) end
--!include refuse_with_slot.lua
