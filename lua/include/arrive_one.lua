-- Decides whether a copy of a task that the broker has delivered may run.
--
-- Uses a parking lot, see lot.lua: PAYLOADS, IN_FLIGHT, copies, note_copies, at_broker, is_parked.
-- Gives arrive(twice, id, copy), for the parking lot in use; `valid_copy`: some of its tasks have several copies. 1: it may run; 0: it may
-- not.
local function arrive(twice, id, copy)
    local chosen, newest, tokens
    if twice then chosen, newest, tokens = copies(id) end
    local inside = copy == '0' and call('HEXISTS', PAYLOADS, id) == 1 or is_parked(id)
    if chosen == '-' and not inside then
        note_copies(id, copy, newest, tokens)
        chosen = copy
    end
    if chosen and tonumber(copy) > tonumber(newest) then -- it was parked in another store or under other keys meanwhile
        note_copies(id, copy, copy, tokens)
        chosen = copy
    end
    if inside or chosen and chosen ~= copy then return 0 end
    if chosen then -- the one that came first has all of them
        call('HDEL', PAYLOADS, id)
        call('ZREM', IN_FLIGHT, id)
    else
        at_broker(id, copy)
    end
    return 1
end
