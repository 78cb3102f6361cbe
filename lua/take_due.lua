-- take_due: assign slots to parked tasks, in order, and return each task shortly before its slot: the caller publishes the messages.
--
-- One script processes several parking lots, up to a bound of work. A parking lot that is not finished is due at once.
-- KEYS   four for each parking lot's limit, see include/read_limits.lua; then for each parking lot the keys of include/lot.lua
-- ARGV   1  number    of parking lots
--        2  due       1: process only parking lots that are due now; 0: all
--        3  horizon   us, >= 0: a task is returned when its slot is at most that far ahead; three quarters of that if the parking lot
--                     has shares, as no later task can overtake a returned one
--        4  most      >= 1: tasks of one parking lot that may have slots at the same time
--        5  pace      us, > 0: least time until a parking lot is due again
--        6  again     us, > 0: a returned task is returned once more if it is not confirmed to be published by then
--        7  memory    us, > 0: for how long the broker may deliver an older copy
--        8  work      >= 1: bound of returned tasks and processed parking lots together; a parking lot counts as LOT tasks
--        9  bytes     >= 1: no more tasks are returned once their messages are that long
--        10 absent    number of queues that follow and that no worker consumes
--        11+          these queues; for each parking lot the key of its bucket, text; then its limit, see include/read_limits.lua (each
--                     message has its own cost; the limit's cost only shows with 0 that the limit is in shadow mode, see
--                     include/let_pass_code_shadow.lua); then, for each limit that has weights or rates by key in the code, the number of its first parking
--                     lot, from 1, and the weights, see next_share.lua (included if a limit is fair)
-- Reply  for each processed parking lot: us until it is due again (-1: it is empty; 0: at once, as more tasks may be returned); 1 if
--        the worker that last processed a parking lot of this limit had another limit in its code, else 0; then for each
--        returned task: its id, us until its turn, its message
-- Writes the parking lots; the slots
local NUMBER, DUE = tonumber(ARGV[1]), ARGV[2] == '1'
local HORIZON_US, MOST, PACE_US = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local AGAIN_US, MEMORY_US = tonumber(ARGV[6]), tonumber(ARGV[7])
local WORK, BYTES = tonumber(ARGV[8]), tonumber(ARGV[9])
local FIRST_ABSENT = 11
local FIRST_BUCKET = FIRST_ABSENT + ARGV[10]
local FIRST_LIMIT = FIRST_BUCKET + NUMBER
local SHARED = 0.75 -- of the horizon
local LOT = 2 -- what it takes to look after a lot, in tasks that are let out
local LATE_US = 2000000 -- a task that is later than that has lost its slot
local EARLY_US = 500000 -- a place may be free sooner than was foreseen: a task that waits for one comes so much before its slot
local MONTH_US = 2592000000000 -- 30 days
local CORRECTS = true -- see include/algorithms.lua
--!include prelude.lua
--!include now.lua
--!include fetch_state_and_config.lua
--!include let_pass_code_shadow.lua
--!include read_limits.lua
--!include load_line_functions.lua
--!include lot.lua
--!fair shares.lua
--!fair share_weights.lua
--!include take_task_to_publish.lua
--!include spread_due_lots.lua
--!include compare_and_note_code.lua

local work, horizon = 0, HORIZON_US

local weights = {}
for i = FIRST_LIMIT + 6 * NUMBER, #ARGV, 2 do weights[KEYS[4 * NUMBER + LOT_KEYS * ARGV[i]]] = ARGV[i + 1] end

local absent = {}
for i = FIRST_ABSENT, FIRST_BUCKET - 1 do absent[ARGV[i]] = true end

-- How many more tasks may be returned.
local function room()
    return bytes < BYTES and floor(WORK - work) or 0
end

local function did(some)
    work = work + some
end

local turns
--!fair next_share.lua

local function return_one(id, wait, known, message)
    work = work + 1
    return return_task(id, wait, known, message)
end

-- Reads the stored state of a limit again: this script reserves slots of the same limit several times.
local function read_again(limit)
    limit.raw, limit.used_up, limit.changed = call('MGET', limit.state_key)[1], nil, nil
end

-- The slot of task `id`, if it is near enough. If not: nil, and the time at which a slot may be available.
local function slot_of(limit, extra, id, message)
    limit.extra, limit.cost = extra, tonumber(match(message, COST) or 1)
    local leaves = extra < -1 and match(message, LEAVES)
    if leaves and leaves ~= '' then limit.extra = -leaves end
    look(limit, now, id)
    local paused = max(limit.grant, limit.paused or now)
    local slot, full = limit.algorithm.reserve(limit, now, id, paused, now + horizon)
    read_again(limit)
    if full or slot > now + horizon then return nil, full and slot or slot - horizon end
    return slot
end

-- Returns tasks once more that were not confirmed to be published: their worker may be dead. Each may have two messages from now on.
local function return_again()
    local most = room()
    local ids = call('ZRANGEBYSCORE', IN_FLIGHT, '-inf', int(now), 'LIMIT', 0, most)
    for i, id in ipairs(ids) do
        if room() <= 0 then return false end
        call('ZREM', IN_FLIGHT, id)
        local message = renew_copy(id, false)
        if message then return_one(id, 0, false, message) end
    end
    return #ids < most
end

-- Returns expired tasks without a slot: the worker that receives one reports that it has expired.
local function return_expired()
    local most = room()
    local ids = call('ZRANGEBYSCORE', EXPIRING, '-inf', int(now), 'LIMIT', 0, most)
    for _, id in ipairs(ids) do
        if room() <= 0 then return false end
        call('ZREM', EXPIRING, id)
        if is_parked(id) then return_one(id, 0) end
    end
    return #ids < most
end

local is_shared -- the lot in use

local function first_of(key)
    return tonumber(call('ZRANGE', key, 0, 0, 'WITHSCORES')[2])
end

-- The first task that is set aside for this queue.
local function first_suspended(queue)
    local entry = call('ZRANGEBYLEX', SUSPENDED, '[' .. queue .. '\0', '(' .. queue .. '\1', 'LIMIT', 0, 1)[1]
    if not entry then return nil end
    local place, id = match(entry, '^[^%z]*%z(%d+)%z(.*)$')
    return {queue = queue, place = tonumber(place), id = id, entry = entry}
end

-- The first task set aside for each queue that a worker consumes again.
local function resumable()
    local back, from = {}, '-'
    while true do
        local queue = match(call('ZRANGEBYLEX', SUSPENDED, from, '+', 'LIMIT', 0, 1)[1] or '', '^([^%z]*)%z')
        if not queue then return back end
        if not absent[queue] then back[#back + 1] = first_suspended(queue) end
        from = '[' .. queue .. '\1'
    end
end

-- Moves tasks that were set aside back to their places among the parked tasks, up to the place `before`.
local function resume(back, before)
    for i, first in ipairs(back) do
        while first and first.place <= before and room() > 0 do
            work = work + 1
            if call('ZREM', SUSPENDED, first.entry) == 1 then
                call('ZADD', PARKED, int(first.place), first.id)
                if is_shared then turns.index(first.id, first.place) else before = first.place end
            end
            first = first_suspended(first.queue)
        end
        back[i] = first or false -- no task of this queue is aside any more
    end
end

-- Sets a task aside if no worker consumes its queue.
local function suspend(id)
    local message = call('HGET', PAYLOADS, id) or ''
    if not absent[match(message, QUEUE)] then return false end
    call('ZADD', SUSPENDED, 0, suspended_entry(id, message))
    call('ZREM', PARKED, id)
    call('ZADD', SUSPENDED_LOTS, 0, bucket)
    work = work + 1
    return true
end

local function may_come(id)
    return next(absent) == nil or not suspend(id)
end

-- The id of the first task in a queue that a worker consumes; nil: none; false: the script has reached its bound of work.
local function next_one(back)
    if is_shared then
        resume(back, math.huge)
        return turns.next(next(absent) and may_come)
    end
    while true do
        local id, place = unpack(call('ZRANGE', PARKED, 0, 0, 'WITHSCORES'))
        if #back > 0 then
            resume(back, tonumber(place) or math.huge)
            id, place = unpack(call('ZRANGE', PARKED, 0, 0, 'WITHSCORES'))
        end
        if room() <= 0 and (id or call('EXISTS', SUSPENDED) == 1) then return false end
        if not id or may_come(id) then return id end
    end
end

-- The next time may be earlier: a task with a slot does not arrive, a lease expires with its holder, or a stored setting expires.
local function sooner(limit, later)
    local first = call('ZRANGEBYSCORE', limit.slots_key, '(0', '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]
    later = min(later, (first or math.huge) + LATE_US)
    if limit.method == 'concurrency' then
        local ends = call('ZRANGEBYSCORE', limit.state_key, '(' .. int(now), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]
        later = min(later, tonumber(ends) or math.huge)
    end
    if limit.ends then
        later = min(later, limit.ends + (span_of_lots() > 0 and call('ZRANK', DUE_LOTS, bucket) or 0) * EACH_US)
    end
    return later
end

-- Returns the tasks that have their turns soon. The result is the time at which the next task may have its turn; nil: at once.
local function return_next(limit, back)
    local extra = limit.extra
    -- A task that has a slot and does not arrive loses it to other tasks.
    local late = limit.version ~= -1 and int(now - LATE_US) or '-1'
    for _, id in ipairs(call('ZRANGEBYSCORE', limit.slots_key, '(0', late, 'LIMIT', 0, WORK)) do
        work = work + 1
        limit.extra = extra
        limit.algorithm.give_up(limit, now, id)
        read_again(limit)
    end
    for _ = 1, MOST - call('ZCOUNT', limit.slots_key, int(now), '+inf') do
        local id = next_one(back)
        if not id then return id == nil and math.huge or nil end
        local message = call('HGET', PAYLOADS, id)
        local slot, later
        if is_shared and not message then
            turns.count()
        else
            slot, later = slot_of(limit, extra, id, message or '')
            if not slot then return sooner(limit, later) end
            local wait = max(0, slot - now - (limit.method == 'concurrency' and EARLY_US or 0))
            local was_here = return_one(id, wait, is_shared, message)
            if is_shared then turns.count(was_here and limit.cost) end
        end
    end
    return now -- the most tasks that may have slots have them; the time at which one of them arrives is not known
end

-- Processes the parking lot in use. The result is us until it is due again; -1: it is empty.
local function process(limit)
    if DUE then
        local due = tonumber(call('ZSCORE', DUE_LOTS, bucket))
        if not due then return -1 end
        if due > now then return due - now end -- another worker has done it meanwhile
    end
    local back = call('EXISTS', SUSPENDED) == 1 and resumable() or {}
    is_shared = turns and turns.use(weights[WEIGHTS] or '')
    horizon = is_shared and floor(HORIZON_US * SHARED) or HORIZON_US
    if limit.method == 'concurrency' and not call('ZSCORE', limit.state_key, '') then
        horizon = min(horizon, EARLY_US) -- slots are a guess until one has ended: no more come than would come at once
    end
    local look = return_again() and return_expired() and return_next(limit, back)
    if is_shared then turns.keep() end
    if not look then
        call('ZADD', DUE_LOTS, int(now), bucket)
        return 0
    end
    local leaving = first_of(IN_FLIGHT)
    if look == math.huge and (call('EXISTS', SUSPENDED) == 1 or is_shared and call('EXISTS', PARKED) == 1) then
        look = now + MONTH_US -- until a queue is consumed again (make_suspended_lots_due.lua), or another weight holds
    end
    if #back > 0 and call('EXISTS', SUSPENDED) == 0 then call('ZREM', SUSPENDED_LOTS, bucket) end
    if look == math.huge and not leaving then
        end_lot()
        return -1
    end
    look = max(now + PACE_US, min(look, leaving or math.huge, first_of(EXPIRING) or math.huge))
    if is_shared then look = turns.stay(look) end
    call('ZADD', DUE_LOTS, int(look), bucket)
    return look - now
end

local answer, asked = {}, {}
for i, limit in ipairs(limits) do
    if room() <= LOT then break end
    use_lot(4 * NUMBER + LOT_KEYS * (i - 1), ARGV[FIRST_BUCKET + i - 1])
    work, out = work + LOT, {}
    local again, another = process(limit), 0
    if not asked[CODE] then
        asked[CODE] = true
        local at, number = FIRST_LIMIT + 6 * (i - 1), weights[WEIGHTS] and match(weights[WEIGHTS], '^r?%d+') -- of its weights
        local by_key = number and string.sub(number, 1, 1) == 'r' -- its rates, so that the number says all
        another = same_code(by_key and number or table.concat({ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 5], number}, ' ')) and 0 or 1
    end
    answer[i] = {again, another, unpack(out)}
end
return answer
