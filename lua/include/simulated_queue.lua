-- A virtual queue: what a limit that is in shadow would have had each request wait for, in order of arrival.
--
-- A bucket of the limit's algorithm, in which each request takes its place as if it had waited for its turn: the queue grows
-- without bound. Nothing of the limit's own state is read or written. No request has its turn before one that came earlier.
--
-- Token and leaky bucket, and the log, are reckoned here; of the others the algorithm's own functions are asked, at the time at
-- which a request has its turn. When the rule changes, what waits comes at the new pace from then on. A bucket for which nothing
-- waits then begins anew, but for token and leaky buckets, where what is missing stays missing. What a limit sets aside for
-- important calls (`reserve`) is not heeded.
--
-- As a text: "<method> <count> <period> <burst> <extra>|<us of the last turn> <minute> <permits asked in it>|<numbers of the
-- algorithm>".
--
-- Uses algorithms, see algorithms.lua.
-- Gives queue_of(rule, text, at): a table, `rule` being one with method, count, period, burst and extra;
-- queue_up(queue, at, permits, paused): us of its turn; nil: there is no room to wait; correct(queue, at, permits);
-- full_at(queue): when all is as if nothing had been asked; text_of(queue).
local BY_TIME = {token_bucket = true, leaky_bucket = true}
local KEPT = {fixed_window = {'start', 'used'}, stepped_bucket = {'tokens', 'tick'}, warm_up = {'next', 'saved'},
    sliding_window = {'index', 'newest'}}
local PARTS = 1000 -- a log of more permits than that tells times within so many parts of its period apart

local function new_queue(rule, at)
    local queue = {method = rule.method, count = rule.count, period = rule.period, burst = rule.burst, extra = rule.extra, last = 0,
        minute = 0, permits = 0, interval = rule.period / rule.count, raw = false, waiting = 0, written = at, since = 0, tat = 0,
        times = {}, taken = {}, head = 1, total = 0}
    if KEPT[rule.method] then algorithms[rule.method].read(queue, at) end
    return queue
end

local function numbers_in(text)
    local numbers = {}
    for each in string.gmatch(text, '%S+') do numbers[#numbers + 1] = tonumber(each) end
    return numbers
end

-- What a text says; of the algorithm's part a list.
local function read_queue(text)
    local method, count, period, burst, extra, last, minute, permits, rest =
        match(text, '^(%S+) (%d+) (%d+) (%d+) (%-?%d+)|(%S+) (%d+) (%d+)|(.*)$')
    local rule = {method = method, count = tonumber(count), period = tonumber(period), burst = tonumber(burst),
        extra = tonumber(extra)}
    return rule, tonumber(last), tonumber(minute), tonumber(permits), numbers_in(rest)
end

local function log(queue, at, permits)
    local last = #queue.times
    if queue.count > PARTS and last >= queue.head then
        local part = queue.period / PARTS
        if floor(queue.times[last] / part) == floor(at / part) then
            queue.times[last], queue.taken[last] = at, queue.taken[last] + permits
            queue.total = queue.total + permits
            return
        end
    end
    queue.times[last + 1], queue.taken[last + 1], queue.total = at, permits, queue.total + permits
end

local function put_in(queue, numbers)
    if BY_TIME[queue.method] then
        queue.tat = numbers[1]
    elseif queue.method == 'sliding_log' then
        for i = 1, #numbers, 2 do log(queue, numbers[i], numbers[i + 1]) end
    else
        for i, name in ipairs(KEPT[queue.method]) do queue[name] = numbers[i] end
        if queue.method == 'sliding_window' then
            queue.counters = {}
            for i = 3, #numbers do queue.counters[i - 3] = numbers[i] end
        end
    end
end

-- The rule has changed at that time: the line that waits keeps its order, and comes at the new pace.
local function change_rule(queue, at, before, last, numbers)
    local factor = queue.interval / (before.period / before.count)
    local both = BY_TIME[queue.method] and BY_TIME[before.method]
    if both and numbers[1] > at then queue.tat = at + (numbers[1] - at) * factor end
    if last <= at then return end
    queue.last = at + (last - at) * factor
    if both then return end
    if BY_TIME[queue.method] then
        queue.tat = queue.last + queue.burst * queue.interval
    elseif queue.method == 'sliding_log' then
        log(queue, queue.last, queue.count)
    else
        algorithms[queue.method].advance(queue, queue.last)
        algorithms[queue.method].take(queue, queue.last, queue.burst)
    end
end

local function queue_of(rule, text, at)
    local queue = new_queue(rule, at)
    if not text then return queue end
    local before, last, minute, permits, numbers = read_queue(text)
    if before.method == rule.method and before.count == rule.count and before.period == rule.period and before.burst == rule.burst
        and before.extra == rule.extra then
        queue.last, queue.minute, queue.permits = last, minute, permits
        put_in(queue, numbers)
    else
        change_rule(queue, at, before, last, numbers)
    end
    return queue
end

local function turn_in_time(queue, at, permits)
    local debt = queue.method == 'token_bucket' and max(0, queue.extra) or 0
    local need = debt > 0 and max(1, permits - debt) or permits
    return max(at, queue.tat + need * queue.interval - queue.burst * queue.interval)
end

local function turn_in_log(queue, at, permits)
    local function passes(before)
        while queue.times[queue.head] and queue.times[queue.head] <= before do
            queue.total = queue.total - queue.taken[queue.head]
            queue.head = queue.head + 1
        end
    end
    passes(at - queue.period)
    while queue.total + permits > queue.count and queue.times[queue.head] do
        at = max(at, queue.times[queue.head] + queue.period)
        passes(at - queue.period)
    end
    return at
end

local function queue_up(queue, at, permits, paused)
    local most = queue.method == 'token_bucket' and queue.burst + max(0, queue.extra) or queue.burst
    permits = min(permits, most) -- a rate that is stored may hold less
    local from, turn = max(at, queue.last, paused), nil
    if BY_TIME[queue.method] then
        turn = turn_in_time(queue, from, permits)
        local room = queue.method == 'leaky_bucket' and queue.extra >= 0 and queue.extra * queue.interval
        if room and turn - max(at, paused) > room then return nil end
        queue.tat = max(queue.tat, turn) + permits * queue.interval
    elseif queue.method == 'sliding_log' then
        turn = turn_in_log(queue, from, permits)
        log(queue, turn, permits)
    else
        local algorithm = algorithms[queue.method]
        algorithm.advance(queue, from)
        turn = algorithm.earliest(queue, from, 0, permits)
        algorithm.take(queue, turn, permits)
    end
    queue.last = turn
    return turn
end

-- A request that came earlier took so many permits more, or (below zero) less, than was reckoned.
local function correct(queue, at, permits)
    if BY_TIME[queue.method] then
        queue.tat = max(queue.tat, at) + permits * queue.interval
    elseif queue.method == 'sliding_log' then
        local last = #queue.times
        if permits > 0 then log(queue, max(at, queue.last), permits) end
        if permits > 0 or last < queue.head then return end
        local back = min(-permits, queue.taken[last] - 1)
        queue.taken[last], queue.total = queue.taken[last] - back, queue.total - back
    elseif queue.method == 'stepped_bucket' then
        queue.tokens = min(queue.burst, queue.tokens - permits)
    elseif queue.method == 'fixed_window' then
        queue.used = max(0, queue.used + permits)
    elseif queue.method == 'sliding_window' then
        queue.counters[0] = max(0, (queue.counters[0] or 0) + permits)
    end -- under warm-up it has been paid for by the one behind it
end

local function full_at(queue)
    if BY_TIME[queue.method] then return queue.tat end
    if queue.method == 'sliding_log' then return (queue.times[#queue.times] or 0) + queue.period end
    if queue.method == 'fixed_window' then return queue.start + queue.period end
    if queue.method == 'warm_up' then return queue.next + queue.extra * 2 end
    if queue.method == 'stepped_bucket' then
        return queue.tick + ceil((queue.burst - queue.tokens) / queue.count) * queue.period
    end
    return (queue.index + 1 + queue.sub_windows) * queue.width
end

local function text_of(queue)
    local parts = {}
    if BY_TIME[queue.method] then
        parts[1] = format('%.17g', queue.tat)
    elseif queue.method == 'sliding_log' then
        for i = queue.head, #queue.times do
            parts[#parts + 1] = format('%.17g %d', queue.times[i], queue.taken[i])
        end
    else
        for i, name in ipairs(KEPT[queue.method]) do parts[i] = format('%.17g', queue[name]) end
        for i = 0, queue.method == 'sliding_window' and queue.sub_windows or -1 do
            parts[#parts + 1] = int(queue.counters[i] or 0)
        end
    end
    return format('%s %d %d %d %d|%.17g %d %d|', queue.method, queue.count, queue.period, queue.burst, queue.extra, queue.last,
        queue.minute, queue.permits) .. table.concat(parts, ' ')
end
