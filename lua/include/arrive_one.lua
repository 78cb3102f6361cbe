-- Decides whether a copy of a task that the broker has delivered may run.
--
-- Uses MEMORY_US, for how long a call about an older copy may come late; a parking lot, see lot.lua: MESSAGES, LEAVING, TWICE, copies,
-- note_copies, is_overtaken, at_broker, is_parked.
-- Gives arrive(twice, id, copy, doubts), for the parking lot in use; `twice`: some of its tasks have several copies. 1: it may run;
-- 0: it may not.
local function arrive(twice, id, copy, doubts)
    local chosen, newest, several
    if twice then chosen, newest, several = copies(id) end
    local inside = copy == '0' and call('HEXISTS', MESSAGES, id) == 1 or is_parked(id)
    if chosen == '-' and not inside then
        note_copies(id, copy, newest, several)
        chosen = copy
    end
    if chosen and tonumber(copy) > tonumber(newest) then -- it was parked in another store or under other keys meanwhile
        note_copies(id, copy, copy, several)
        chosen = copy
    end
    local overtaken = twice and is_overtaken(id, tonumber(copy), doubts)
    if inside or overtaken or chosen and chosen ~= copy then return 0 end
    if doubts > 0 then
        call('HSET', TWICE, id .. '\0', format('%s %d', copy, doubts))
        call('PEXPIRE', TWICE, int(ceil(MEMORY_US / 1000)))
    end
    if several then -- the one that came first has all of them
        call('HDEL', MESSAGES, id)
        call('ZREM', LEAVING, id)
    else
        at_broker(id, copy)
    end
    return 1
end
