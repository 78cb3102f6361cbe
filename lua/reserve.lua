-- reserve: take the permits of one request ahead of time, once for each id.
--
-- The permits are spent at once and are good at the time in the reply; cancel.lua gives them back.
-- KEYS   four per limit, see include/request.lua; then one per limit: its ids
-- ARGV   1  id        text, not empty: names the reservation
--        2  horizon   us >= 0; how far ahead the permits may lie
--        3+ six per limit, see include/request.lua
-- Reply  see include/reply.lua; the error "RESERVED <limit>": under this id other limits were reserved; refused: no permit could be had within the horizon, and nothing was taken
-- Writes each limit's state; ids: see include/remember.lua; TTL an hour after the last, which is how long an id is known.
local id = ARGV[1]
local NUMBER = #KEYS / 5 -- of limits
local FIRST_LIMIT = 3
local IDS = 4 * NUMBER
local CORRECTS = false -- see include/algorithms.lua
--!include prelude.lua
--!include now.lua
--!include algorithms.lua
--!include request.lua
--!include check.lua
--!include slots.lua
--!include reply.lua
--!include remember.lua

local known = tonumber(call('ZSCORE', KEYS[IDS + 1], member_of(id)))
for i = 2, #limits do
    local other = tonumber(call('ZSCORE', KEYS[IDS + i], member_of(id)))
    if other ~= known then return redis.error_reply(format('RESERVED %d', known and i or 1)) end
end
if known then return reply(1, known, max(0, known - now), 0) end

if behind or joint > now + ARGV[2] or NUMBER > 1 and not fits(-1) then
    local slot, full = joint, false
    if binding > 0 and NUMBER > 1 then
        slot, full = line_up('', now)
    elseif binding > 0 then
        slot, full = limits[1].algorithm.reserve(limits[1], now, '', joint, now)
    end
    for i = 1, #limits do
        limits[i].algorithm.refuse(limits[i], now)
    end
    return reply(full and -1 or 0, now, max(1, slot - now), binding)
end
for i = 1, #limits do
    limits[i].algorithm.commit(limits[i], now, '', joint)
    remember_reserved(KEYS[IDS + i], id, joint, limits[i].cost)
end
return reply(1, joint, joint - now, 0)
