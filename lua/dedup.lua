-- dedup: copies of tasks have come from the broker; may they run?
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
--!include arrive_one.lua

local may, at = {}, 2
for lot = 0, #KEYS - 1, LOT_KEYS do
    use_lot(lot, '')
    local twice, last = call('EXISTS', TWICE) == 1, at + 3 * ARGV[at]
    for i = at + 1, last, 3 do
        may[#may + 1] = arrive(twice, ARGV[i], ARGV[i + 1], tonumber(ARGV[i + 2]))
    end
    at = last + 1
end
return may
