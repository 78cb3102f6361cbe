-- The permits of one request, from all of its limits or from none: what acquire.lua does, and acquire_next.lua several times.
--
-- Uses NUMBER, of limits; FIRST_LIMIT; CORRECTS; id, HORIZON_US and CLAIM_US as in acquire.lua; and of its own
-- includes limits, joint, binding, behind, fits and reply. For refuse.lua it makes in_line and latest.
-- Gives the reply: it ends the script, or the function that it stands in.
--!include fast_path.lua
--!include read_limits.lua
--!include check.lua
--!include joint_slot.lua
--!include reply.lua

-- A request that returns goes before newcomers: a newcomer that finds others waiting ahead joins the line, even if a permit is there.
if not behind and joint <= now + HORIZON_US and (NUMBER == 1 or fits(CLAIM_US)) then
    for i = 1, #limits do
        limits[i].algorithm.commit(limits[i], now, id, joint)
    end
    return reply(1, joint, joint - now, 0)
end

-- The request asked for a slot only, and needs none: a permit can be had now.
if binding == 0 then return reply(0, now, 0, 0) end

local in_line, latest = id, now + CLAIM_US
--!include refuse.lua
