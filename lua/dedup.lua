-- dedup: the broker has delivered copies of tasks: decide which of them may run.
--
-- KEYS   for each parking lot the keys of include/lot.lua
-- ARGV   for each parking lot: number of copies that follow; for each copy the task's id and the number of the copy, 0 for a user's
--        own message that was redelivered
-- Reply  for each copy 1: it may run; 0: it may not, as another copy may, or the task is parked
-- Writes the parking lots: an arrived copy was published
--!include prelude.lua
--!include lot.lua
--!include arrive_one.lua

local may, at = {}, 1
for lot = 0, #KEYS - 1, LOT_KEYS do
    use_lot(lot, '')
    local twice, last = call('EXISTS', VALID_COPY) == 1, at + 2 * ARGV[at]
    for i = at + 1, last, 2 do
        may[#may + 1] = arrive(twice, ARGV[i], ARGV[i + 1])
    end
    at = last + 1
end
return may
