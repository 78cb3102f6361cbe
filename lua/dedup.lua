-- dedup: the broker has delivered copies of tasks: decide which of them may run.
--
-- KEYS   for each parking lot the keys of include/lot.lua
-- ARGV   1  memory    us, > 0: for how long a call about an older copy may come late
--        2+           for each parking lot: number of copies that follow;
--                     three for each copy: the task's id; the number of the copy, 0 for a user's own message that was redelivered;
--                     and its doubts: how often its message was sent anew because the worker did not know whether it was parked
-- Reply  for each copy 1: it may run; 0: it may not, as another copy may, or the task is parked
-- Writes the parking lots: an arrived copy was published
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
