-- acquire_part: take the permits of one part of a request whose limits lie in several slots of a cluster, at the time that the other parts
-- have been given too, or later. See celery_ratelimit/limiter/multi_slot_acquire.py.
--
-- KEYS   four per limit, see include/read_limits.lua; then one per limit: its ids, see reserve.lua
-- ARGV   1  id        text; as in acquire.lua and reserve.lua
--        2  horizon   us >= 0; a permit may be taken that far ahead
--        3  claim     us >= 0; a refused request with an id keeps a slot that lies no further ahead than that
--        4  earliest  us >= 0; the permits are taken no earlier than that from now
--        5  known     '' as acquire.lua; 'find' as reserve.lua: the id is noted, and found again; 'replace': it is noted anew
--        6+ six per limit, see include/read_limits.lua; then the id of the lease, as acquire
-- Reply  see include/reply.lua; binding -1: the reservation was known; the error "RESERVED <limit>", see reserve.lua
-- Writes as acquire.lua and reserve.lua do
local id, HORIZON_US, CLAIM_US, EARLIEST_US, known = ARGV[1], ARGV[2] + 0, ARGV[3] + 0, ARGV[4] + 0, ARGV[5]
local in_line = known == '' and id or '' -- a reservation is noted by its id, and keeps no slot
local NUMBER = #KEYS / 5 -- of limits
local FIRST_LIMIT = 6
local IDS = 4 * NUMBER
local CORRECTS = false -- see include/algorithms.lua
--!include prelude.lua
--!include now.lua
lease_id = ARGV[FIRST_LIMIT + 6 * NUMBER]
local soonest, latest = now + EARLIEST_US, now + CLAIM_US
--!include read_limits.lua
--!include check_all_limits.lua
--!include reply.lua
--!include idempotency.lua

if known == 'find' then
    local at = tonumber(call('ZSCORE', KEYS[IDS + 1], member_of(id)))
    for i = 2, #limits do
        local other = tonumber(call('ZSCORE', KEYS[IDS + i], member_of(id)))
        if other ~= at then return redis.error_reply(format('RESERVED %d', at and i or 1)) end
    end
    if at then return reply(1, at, max(0, at - now), -1) end
end

if allowed then
    for i = 1, #limits do
        limits[i].algorithm.commit(limits[i], now, in_line, joint)
        if known ~= '' then remember_reserved(KEYS[IDS + i], id, joint, limits[i].cost) end
    end
    return reply(1, joint, joint - now, 0)
end
if binding == 0 then return reply(0, now, joint - now, 0) end
--!include refuse_with_slot.lua
