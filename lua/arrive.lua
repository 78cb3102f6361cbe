-- arrive: copies of tasks have come from the broker; may they run?
--
-- KEYS   see include/lot.lua
-- ARGV   1  memory    us, > 0: for how long a call about an older copy may come late
--        2+           three for each copy: the task's id; the number of the copy, 0 for a user's own that was delivered once more;
--                     and its doubts: how often a message of it was sent anew, for it was not known whether it was parked
-- Reply  for each 1: yes; 0: no, another copy may, or the task is parked
-- Writes the lot: a copy that has come was published
local MEMORY_US, FIRST_COPY = tonumber(ARGV[1]), 2
--!include prelude.lua
--!include lot.lua

use_lot(0, '')

local may, twice = {}, call('EXISTS', TWICE) == 1
for i = FIRST_COPY, #ARGV, 3 do
    local id, copy, doubts = ARGV[i], ARGV[i + 1], tonumber(ARGV[i + 2])
    local chosen, newest, several
    if twice then chosen, newest, several = copies(id) end
    local inside = copy == '0' and call('HEXISTS', MESSAGES, id) == 1 or is_parked(id)
    if chosen == '-' and not inside then
        note_copies(id, copy, newest, several)
        chosen = copy
    end
    local overtaken = twice and is_overtaken(id, tonumber(copy), doubts)
    may[#may + 1] = (inside or overtaken or chosen and chosen ~= copy) and 0 or 1
    if may[#may] == 1 and doubts > 0 then
        call('HSET', TWICE, id .. '\0', format('%s %d', copy, doubts))
        call('PEXPIRE', TWICE, int(ceil(MEMORY_US / 1000)))
    end
    if may[#may] == 1 and several then -- the one that came first has all of them
        call('HDEL', MESSAGES, id)
        call('ZREM', LEAVING, id)
    elseif may[#may] == 1 then
        at_broker(id, copy)
    end
end
return may
