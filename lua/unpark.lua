-- unpark: give those who are parked their slots, in order, and let them out shortly before: whoever calls publishes them.
--
-- KEYS   four of the limit, see include/request.lua; then those of include/lot.lua
-- ARGV   1  horizon   us, >= 0: a task leaves when its slot is no further ahead than that
--        2  most      >= 1: no more than so many have a slot at once, and no more leave in one call
--        3  pace      us, > 0: nobody has to look again sooner
--        4  again     us, > 0: one that is not known to be published by then is published once more
--        5  memory    us, > 0: for how long the broker may hand out an older copy
--        6  key       text: of the bucket
--        7+           the limit, see include/request.lua; its cost is each message's own
-- Reply  us until somebody has to look again, -1 if the lot is empty; then for each that leaves: its id, us until its turn,
--        its message
-- Writes the lot; the slots
local NUMBER, FIRST_LIMIT, LOT = 1, 7, 4
local HORIZON_US, MOST, PACE_US = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local AGAIN_US, MEMORY_US = tonumber(ARGV[4]), tonumber(ARGV[5])
local LOOK_US = 500000 -- a pause or a change of rate is noticed by then
local LATE_US = 2000000 -- who is later than that has lost its slot
--!include prelude.lua
--!include now.lua
--!include algorithms.lua
--!include request.lua
--!include lot.lua
--!include leave.lua

local limit = limits[1]
local extra, paused = limit.extra, limit.paused or now

-- Asks for task `id` with what is in the store by now.
local function slot_of(id)
    limit.extra, limit.cost = extra, tonumber(match(call('HGET', MESSAGES, id) or '1', '^%d+'))
    limit.grant, limit.owner, limit.first, limit.overdue, limit.behind = now, nil, nil, nil, nil
    limit.algorithm.check(limit, now, id)
    local slot, full = limit.algorithm.reserve(limit, now, id, max(limit.grant, paused), now + HORIZON_US)
    limit.raw, limit.in_use, limit.changed = call('MGET', limit.state_key)[1], nil, nil
    if full then return now + LOOK_US end
    return slot
end

-- 1. Whoever let these out may be dead: there may be two of each from now on.
for _, id in ipairs(call('ZRANGEBYSCORE', LEAVING, '-inf', int(now), 'LIMIT', 0, MOST)) do
    call('ZREM', LEAVING, id)
    local cost, copy, rest = match(call('HGET', MESSAGES, id) or '', '^(%d+) (%d+) (.*)$')
    if cost then
        local _, newest = copies(id)
        newest = max(copy, newest or 0) + 1
        call('HSET', MESSAGES, id, format('%s %d ', cost, newest) .. rest)
        note_for_a_while(id, '-', newest, '1')
        leave(id, 0)
    end
end

-- 2. The expired need no slot: the worker that gets one says so.
for _, id in ipairs(call('ZRANGEBYSCORE', EXPIRING, '-inf', int(now), 'LIMIT', 0, MOST)) do
    call('ZREM', EXPIRING, id)
    if call('ZSCORE', PARKED, id) then leave(id, 0) end
end

-- 3. Those whose turn is near. Who has a slot and does not come leaves it to others.
for _, id in ipairs(call('ZRANGEBYSCORE', limit.slots_key, '-inf', int(now - LATE_US), 'LIMIT', 0, MOST)) do
    limit.extra = extra
    limit.algorithm.leave(limit, now, id)
    limit.raw, limit.in_use = call('MGET', limit.state_key)[1], nil
end
local look = now + LOOK_US
local room = MOST - call('ZCOUNT', limit.slots_key, int(now), '+inf')
for i = 1, min(room, MOST - #out / 3) do
    local id = call('ZRANGE', PARKED, 0, 0)[1]
    if not id then break end
    local slot = slot_of(id)
    if slot > now + HORIZON_US then
        look = min(look, slot - HORIZON_US)
        break
    end
    leave(id, slot - now)
end

if nobody_is_left() then
    call('ZREM', LOTS, ARGV[6])
    return {-1, unpack(out)}
end
look = max(look, now + PACE_US)
call('ZADD', LOTS, int(look), ARGV[6])
return {look - now, unpack(out)}
