-- confirm_published: these tasks were let out of their lots, and their messages are at the broker again.
--
-- KEYS   for each lot those of include/lot.lua, with those of who shares its limit
-- ARGV   for each lot: its key, text; how many pairs follow; how many ids after them;
--        pairs of an id and the number of its copy; ids whose older copies are acknowledged by now
-- Reply  1
-- Writes the lots
--!include prelude.lua
--!include lot.lua
LOT_KEYS, shares = 16, {} -- what is known of those who share a limit ends with the lot, see shares.lua

local at = 1
for lot = 0, #KEYS - 1, LOT_KEYS do
    use_lot(lot, ARGV[at])
    local first = at + 3
    local last = first + 2 * ARGV[at + 1]
    for i = first, last - 1, 2 do
        at_broker(ARGV[i], ARGV[i + 1])
    end
    acknowledged(last, last + ARGV[at + 2] - 1)
    if nobody_is_left() then end_lot() end
    at = last + ARGV[at + 2]
end
return 1
