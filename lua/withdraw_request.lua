-- withdraw_request: a request will not come, and gives up the slots that it has. Idempotent.
--
-- KEYS   four per limit, see include/read_limits.lua; then one per limit: what was touched, see include/mark_for_recheck.lua
-- ARGV   1  id        text: names the request
--        2+ six per limit, see include/read_limits.lua; then one per limit: key of its bucket, text
-- Reply  how many slots there were
-- Writes the slots, and the state of a limit whose line has become shorter.
local id = ARGV[1]
local NUMBER = #KEYS / 5 -- of limits
local FIRST_LIMIT = 2
local TOUCHED, BUCKETS = 4 * NUMBER, FIRST_LIMIT + 6 * NUMBER - 1 -- where those begin, less one
local CORRECTS = true -- see include/algorithms.lua
--!include prelude.lua
--!include now.lua
--!include read_limits.lua
--!include load_line_functions.lua
--!include mark_for_recheck.lua

local found = 0
for i = 1, #limits do
    if call('ZSCORE', limits[i].slots_key, id) then
        found = found + 1
        limits[i].algorithm.give_up(limits[i], now, id)
        touch(KEYS[TOUCHED + i], ARGV[BUCKETS + i])
    end
end
return found
