-- release: give back leases. Idempotent: a lease that has expired, or was given back, is free already.
--
-- KEYS   one per lease: the leases of its limit; then one per lease: what was touched, see include/mark_for_recheck.lua
-- ARGV   three per lease
--           id      text: the member of the lease, see include/lease_sizes.lua
--           at      us: since when it was held; how long that was makes the next estimate of a wait
--           bucket  text: the key of its bucket
-- Reply  how many leases were given back
-- Writes leases, see algorithms/concurrency.lua; for each the first line that waits is notified
local NUMBER = #KEYS / 2 -- of leases
--!include prelude.lua
--!include now.lua
--!include mark_for_recheck.lua
--!include lease_sizes.lua
--!include release_lease.lua
--!include concurrency_waiters.lua

local released = 0
for i = 1, NUMBER do
    local id, at, bucket = ARGV[3 * i - 2], tonumber(ARGV[3 * i - 1]), ARGV[3 * i]
    local places = give_place_back(KEYS[i], id, at)
    if places then
        released = released + 1
        let_in(KEYS[i], places)
        touch(KEYS[NUMBER + i], bucket)
    end
end
return released
