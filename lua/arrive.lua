-- arrive: copies of tasks have come from the broker; may they run?
--
-- KEYS   for each lot those of include/lot.lua
-- ARGV   1  memory    us, > 0: for how long a call about an older copy may come late
--        2+           for each lot: how many copies follow;
--                     three for each copy: the task's id; the number of the copy, 0 for a user's own that was delivered once more;
--                     and its doubts: how often a message of it was sent anew, for it was not known whether it was parked
-- Reply  for each copy 1: yes; 0: no, another copy may, or the task is parked
-- Writes the lots: a copy that has come was published
local MEMORY_US = tonumber(ARGV[1])
--!include prelude.lua
--!include lot.lua

local may = {}

-- One copy, of the lot in use; `twice`: there are others of some of its tasks.
local function arrive(twice, id, copy, doubts)
    local chosen, newest, several
    if twice then chosen, newest, several = copies(id) end
    local inside = copy == '0' and call('HEXISTS', MESSAGES, id) == 1 or is_parked(id)
    if chosen == '-' and not inside then
        note_copies(id, copy, newest, several)
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

local at = 2
for lot = 0, #KEYS - 1, LOT_KEYS do
    use_lot(lot, '')
    local twice, last = call('EXISTS', TWICE) == 1, at + 3 * ARGV[at]
    for i = at + 1, last, 3 do
        may[#may + 1] = arrive(twice, ARGV[i], ARGV[i + 1], tonumber(ARGV[i + 2]))
    end
    at = last + 1
end
return may
