-- forget: give back the slots that a request holds; it will not come. Idempotent.
--
-- KEYS   four per limit, see include/request.lua; then one per limit: what was touched, see include/touch.lua
-- ARGV   1  id        text: names the request
--        2+ six per limit, see include/request.lua; then one per limit: key of its bucket, text
-- Reply  how many slots there were
-- Writes the slots, and the state of a limit whose line has become shorter.
local id = ARGV[1]
local NUMBER = #KEYS / 5 -- of limits
local FIRST_LIMIT = 2
local CORRECTS = true -- see include/algorithms.lua
--!include prelude.lua
--!include now.lua
--!include algorithms.lua
--!include request.lua
--!include touch.lua

local found = 0
for i = 1, #limits do
    if call('ZSCORE', limits[i].slots_key, id) then
        found = found + 1
        limits[i].algorithm.leave(limits[i], now, id)
        touch(KEYS[4 * NUMBER + i], ARGV[FIRST_LIMIT + 6 * NUMBER + i - 1])
    end
end
return found
