-- release: give back the leases of one holder. Idempotent: a lease that has expired, or was given back, is free already.
--
-- KEYS   one per limit: its leases; then one per limit: what was touched, see include/touch.lua
-- ARGV   1  id        text: the holder
--        2  at        us: when it got them; how long it held them makes the next estimate of a wait
--        3+           one per limit: key of its bucket, text
-- Reply  how many leases were given back
-- Writes leases, see algorithms/concurrency.lua
local id = ARGV[1]
local at = tonumber(ARGV[2])
local NUMBER, FIRST_BUCKET = #KEYS / 2, 3 -- of limits
--!include prelude.lua
--!include now.lua
--!include touch.lua

local NEWEST = 0.2 -- the share of the newest hold in the running mean
local LONGEST_US = 86400000000 -- and the longest that is believed, a day
local released = 0
for i = 1, NUMBER do
    if call('ZSCORE', KEYS[i], id) then
        released = released + 1
        local held = min(max(0, now - at), LONGEST_US)
        local mean = tonumber(call('ZSCORE', KEYS[i], ''))
        if mean then held = floor(-mean * (1 - NEWEST) + held * NEWEST) end
        call('ZADD', KEYS[i], int(-held), '') -- first, so that the key and its time to live stay
        call('ZREM', KEYS[i], id)
        touch(KEYS[NUMBER + i], ARGV[FIRST_BUCKET + i - 1])
    end
end
return released
