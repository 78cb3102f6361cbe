-- reserve: take the permits of one request ahead of time, once for each id.
--
-- The permits are spent at once and are good at the time in the reply; cancel_reservation.lua gives them back.
-- KEYS   four per limit, see include/read_limits.lua; then one per limit: its ids
-- ARGV   1  id        text, not empty: names the reservation
--        2  horizon   us >= 0; how far ahead the permits may lie
--        3+ six per limit, see include/read_limits.lua
-- Reply  see include/reply.lua; refused: no permit could be had within the horizon, and nothing was taken; the error
--        "RESERVED <limit>": under this id other limits were reserved
-- Writes each limit's state; ids: see include/idempotency.lua; TTL an hour after the last, which is how long an id is known.
local id, HORIZON_US = ARGV[1], ARGV[2] + 0
local NUMBER = #KEYS / 5 -- of limits
local FIRST_LIMIT = 3
local IDS = 4 * NUMBER
local CORRECTS = false -- see include/algorithms.lua
--!include prelude.lua
--!include now.lua
local soonest, in_line, latest = now, '', now -- a reservation that is refused keeps no slot
--!include read_limits.lua
--!include check_all_limits.lua
--!include reply.lua
--!include idempotency.lua

local known = tonumber(call('ZSCORE', KEYS[IDS + 1], member_of(id)))
for i = 2, #limits do
    local other = tonumber(call('ZSCORE', KEYS[IDS + i], member_of(id)))
    if other ~= known then return redis.error_reply(format('RESERVED %d', known and i or 1)) end
end
if known then return reply(1, known, max(0, known - now), 0) end

if allowed then
    for i = 1, #limits do
        limits[i].algorithm.commit(limits[i], now, '', joint)
        remember_reserved(KEYS[IDS + i], id, joint, limits[i].cost)
    end
    return reply(1, joint, joint - now, 0)
end
--!include refuse_with_slot.lua
