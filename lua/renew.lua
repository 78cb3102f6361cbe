-- renew: keep the leases of holders that are still at work. A lease that has expired stays lost: another holder may have it.
--
-- KEYS   one per lease: the leases of its limit
-- ARGV   one holder per key: the member of its lease, see include/lease_sizes.lua; then one time per key: us that the lease lasts from now
-- Reply  one character per key: 1 renewed, 0 lost
-- Writes leases; TTL until the last of them has expired
--!include prelude.lua
--!include now.lua

local kept = ''
for i = 1, #KEYS do
    local expiry = tonumber(call('ZSCORE', KEYS[i], ARGV[i]))
    if expiry and expiry > now then
        local lease = tonumber(ARGV[#KEYS + i])
        call('ZADD', KEYS[i], int(max(expiry, now + lease)), ARGV[i])
        if call('PTTL', KEYS[i]) * 1000 < lease then
            call('PEXPIRE', KEYS[i], int(ceil(lease / 1000)))
        end
        kept = kept .. '1'
    else
        kept = kept .. '0'
    end
end
return kept
