-- confirm_published: note that the messages of these returned tasks are at the broker again.
--
-- KEYS   for each parking lot the keys of include/lot.lua, with its keys for shares
-- ARGV   for each parking lot: the key of its bucket, text; number of pairs that follow; number of values after them;
--        pairs of a task's id and the number of its copy; pairs of an id and a token of messages that are acknowledged by now
-- Reply  1
-- Writes the parking lots
--!include prelude.lua
--!include lot.lua
LOT_KEYS, shares = 16, {} -- the shares end with the parking lot, see shares.lua

local at = 1
for lot = 0, #KEYS - 1, LOT_KEYS do
    use_lot(lot, ARGV[at])
    local first = at + 3
    local last = first + 2 * ARGV[at + 1]
    for i = first, last - 1, 2 do
        at_broker(ARGV[i], ARGV[i + 1])
    end
    acknowledged(last, last + ARGV[at + 2] - 1)
    if is_empty() then end_lot() end
    at = last + ARGV[at + 2]
end
return 1
