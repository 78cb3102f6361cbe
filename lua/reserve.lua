-- reserve: take the permits of one request ahead of time, once for each id.
--
-- The permits are spent at once and are good at the time in the reply; cancel.lua gives them back.
-- KEYS   four per limit, see include/request.lua; then one per limit: its ids
-- ARGV   1  id        text, not empty: names the reservation
--        2  horizon   us >= 0; how far ahead the permits may lie
--        3+ six per limit, see include/request.lua
-- Reply  see include/reply.lua; refused: no permit could be had within the horizon, and nothing was taken
-- Writes each limit's state; ids: sorted set, id -> us at which its permits are good; TTL an hour after the last, which
--        is how long an id is known.
local id = ARGV[1]
local NUMBER = #KEYS / 5 -- of limits
local FIRST_LIMIT = 3
local IDS = 4 * NUMBER
--!include prelude.lua
--!include now.lua
--!include algorithms.lua
--!include request.lua
--!include check.lua
--!include reply.lua
--!include remember.lua

local known = tonumber(call('ZSCORE', KEYS[IDS + 1], id))
if known then return reply(1, known, max(0, known - now), 0) end

if behind or joint > now + ARGV[2] then
    local slot, full = joint, false
    if binding > 0 then
        slot, full = limits[binding].algorithm.reserve(limits[binding], now, '', joint, now)
    end
    for i = 1, #limits do
        limits[i].algorithm.refuse(limits[i], now)
    end
    return reply(full and -1 or 0, now, slot - now, binding)
end
for i = 1, #limits do
    limits[i].algorithm.commit(limits[i], now, '', joint)
    remember(KEYS[IDS + i], id, joint)
end
return reply(1, joint, joint - now, 0)
