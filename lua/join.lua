-- join: take the permits of one part of a decision whose limits live in several slots of a cluster, at a time of which the
-- other parts have been told too, or later. See celery_ratelimit/limiter/cross_slot.py.
--
-- KEYS   four per limit, see include/request.lua; then one per limit: its ids, see reserve.lua
-- ARGV   1  id        text; as in acquire.lua and reserve.lua
--        2  horizon   us >= 0; a permit may be taken that far ahead
--        3  claim     us >= 0; a refused request with an id keeps a slot that lies no further ahead than that
--        4  earliest  us >= 0; the permits are taken no earlier than that from now
--        5  known     '' as acquire.lua; 'find' as reserve.lua: the id is noted, and found again; 'replace': it is noted anew
--        6+ six per limit, see include/request.lua
-- Reply  see include/reply.lua; binding -1: the reservation was known; the error "RESERVED <limit>", see reserve.lua
-- Writes as acquire.lua and reserve.lua do
local id, known = ARGV[1], ARGV[5]
local NUMBER = #KEYS / 5 -- of limits
local FIRST_LIMIT = 6
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

if known == 'find' then
    local at = tonumber(call('ZSCORE', KEYS[IDS + 1], member_of(id)))
    for i = 2, #limits do
        local other = tonumber(call('ZSCORE', KEYS[IDS + i], member_of(id)))
        if other ~= at then return redis.error_reply(format('RESERVED %d', at and i or 1)) end
    end
    if at then return reply(1, at, max(0, at - now), -1) end
end

joint = max(joint, now + ARGV[4])
if not behind and joint <= now + ARGV[2] and (NUMBER == 1 or fits(known == '' and ARGV[3] or -1)) then
    for i = 1, #limits do
        limits[i].algorithm.commit(limits[i], now, known == '' and id or '', joint)
        if known ~= '' then
            remember_reserved(KEYS[IDS + i], id, joint, limits[i].cost)
        end
    end
    return reply(1, joint, joint - now, 0)
end
if binding == 0 then return reply(0, now, joint - now, 0) end

local slot, full
local name = known == '' and id or ''
if NUMBER > 1 then
    slot, full = line_up(name, now + ARGV[3])
else
    slot, full = limits[1].algorithm.reserve(limits[1], now, name, joint, now + ARGV[3])
end
for i = 1, #limits do
    limits[i].algorithm.refuse(limits[i], now)
end
return reply(full and -1 or 0, now, max(1, slot - now), binding)
