-- release_and_acquire: places that tasks have held are given back, and requests of the same worker that wait for places ask: in one step, so that
-- a place is not empty between two tasks.
--
-- Each request is decided as by acquire, one after the other. A place that is free is first for lines of other workers whose turn is
-- before the request's own: they are notified, and the request is refused. What is left at the end is for lines that wait as well.
-- KEYS   four per limit, see include/read_limits.lua; then of each place that is given back its leases; then for each what was touched
-- ARGV   1  number    of limits
--        2  horizon   us, see acquire.lua
--        3  claim     us, see acquire.lua
--        4  waiter    text: the line of the requests, see include/concurrency_waiters.lua; '': its worker cannot be notified
--        5  most      >= 0: no more requests than that get their permits; the others get slots, and no notification
--        6  all       1: each request is asked for; 0: up to the first that is refused
--        7  requests  how many, >= 1
--        8+ six per limit, see include/read_limits.lua; of each request its id and the id of its lease; of each lease that is given
--           back its member, see include/lease_sizes.lua, since when it was held in us, and the key of its bucket
-- Reply  the reply of acquire for each request that was asked for
-- Writes as acquire and release
local NUMBER, HORIZON_US, CLAIM_US, WAITER = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]
local most, ALL = tonumber(ARGV[5]), ARGV[6] == '1'
local FIRST_LIMIT = 8
local FIRST_ID = FIRST_LIMIT + 6 * NUMBER
local FIRST_PLACE = FIRST_ID + 2 * ARGV[7]
local PLACES = (#KEYS - 4 * NUMBER) / 2
local CORRECTS = false -- see include/algorithms.lua
--!include prelude.lua
--!include now.lua
--!include mark_for_recheck.lua
--!include lease_sizes.lua
--!include release_lease.lua
--!include concurrency_waiters.lua

local SLOT_ONLY_US = -2^40
-- What is given back here is for a request whose turn is so much later than that of others, too: elsewhere it would be empty until it
-- is heard of.
local SO_NEAR_US = 100000
local free = {} -- by the key of the leases: what is to be touched, if a place is free in the end; and how many were given back
local asked = {} -- the same: how many places there are, 0 under a pause; and for how many a line was notified
local refused -- the limit that has refused a request last

for i = 1, PLACES do
    local key, at = KEYS[4 * NUMBER + i], FIRST_PLACE + 3 * (i - 1)
    local places = give_place_back(key, ARGV[at], tonumber(ARGV[at + 1]))
    if places then
        free[key] = {KEYS[4 * NUMBER + PLACES + i], ARGV[at + 2], places + (free[key] and free[key][3] or 0)}
    end
end

local function left(key)
    return asked[key].count - call('ZCOUNT', key, '(' .. int(now), '+inf') - asked[key].notified - more_places(key)
end

-- Places are kept for lines whose turn is before that of the request.
local function let_others_first(limit, id)
    local key = limit.state_key
    local place = asked[key]
    if not place then
        place = {notified = 0, count = limit.paused and limit.paused > now and 0 or limit.count}
        asked[key] = place
    end
    local asks = holder(id, limit.cost)
    local turn, first = tonumber(call('ZSCORE', limit.slots_key, id)), no_more_waiting(key, WAITER, asks)
    turn = first and min(first, turn or first) or turn
    place.turn = first
    place.notified = place.notified + let_in(key, left(key), turn and free[key] and turn - SO_NEAR_US or turn, WAITER, true, asks)
    limit.kept = place.notified
end

local function acquire(id, HORIZON_US)
--!include read_limits.lua
    for i = 1, #limits do
        if limits[i].method == 'concurrency' then let_others_first(limits[i], id) end
    end
    local soonest, in_line, latest = now, id, now + CLAIM_US
--!include check_all_limits.lua
--!include reply.lua
    if allowed then
        for i = 1, #limits do
            limits[i].algorithm.commit(limits[i], now, id, joint)
        end
        refused = nil
        return reply(1, joint, joint - now, 0)
    end
    refused = limits[binding]
    if binding == 0 then return reply(0, now, 0, 0) end
--!include refuse_with_slot.lua
end

local said, is_refused = {}, false
for i = FIRST_ID, FIRST_PLACE - 1, 2 do
    lease_id = ARGV[i + 1]
    local answer = acquire(ARGV[i], most > 0 and HORIZON_US or SLOT_ONLY_US)
    if type(answer) ~= 'string' then return answer end -- an error, of all
    said[#said + 1] = answer
    if match(answer, '^1') then
        most = most - 1
    else
        local waits = WAITER ~= '' and most > 0 and not is_refused and refused and refused.method == 'concurrency'
        local place = waits and asked[refused.state_key]
        local turn = place and place.count > 0 and tonumber(call('ZSCORE', refused.slots_key, ARGV[i]))
        if turn then note_waiting(refused.state_key, WAITER, holder(ARGV[i], refused.cost), min(turn, place.turn or turn)) end
        is_refused = true
        if not ALL then break end
    end
end

for key, place in next, asked do
    if left(key) > 0 then place.notified = place.notified + let_in(key, left(key), nil, WAITER, true) end
    if free[key] and left(key) <= 0 then free[key] = nil end
end
for key, touched in next, free do
    if not asked[key] then let_in(key, touched[3]) end
    touch(touched[1], touched[2])
end
return said
