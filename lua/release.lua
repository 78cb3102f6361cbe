-- release: give back the leases of one holder. Idempotent: a lease that has expired, or was given back, is free already.
--
-- KEYS   one per limit: its leases; then one per limit: what was touched, see include/touch.lua
-- ARGV   1  id        text: the holder
--        2  at        us: when it got them; how long it held them makes the next estimate of a wait
--        3+           one per limit: key of its bucket, text
-- Reply  how many leases were given back
-- Writes leases, see algorithms/concurrency.lua; for each the first line that waits is rung for
local id = ARGV[1]
local at = tonumber(ARGV[2])
local NUMBER, FIRST_BUCKET = #KEYS / 2, 3 -- of limits
--!include prelude.lua
--!include now.lua
--!include touch.lua
--!include give_place_back.lua
--!include waiting_lines.lua

local released = 0
for i = 1, NUMBER do
    if give_place_back(KEYS[i], id, at) then
        released = released + 1
        let_in(KEYS[i], 1)
        touch(KEYS[NUMBER + i], ARGV[FIRST_BUCKET + i - 1])
    end
end
return released
