-- simulate_shadow: what limits that are in shadow would have done to requests, of which processes tell about once a second.
--
-- Requests of several processes are put in order before they are reckoned: they wait here until all that came earlier have been
-- told of, LATE_US long. What is told later than that stands behind what has been reckoned.
-- KEYS   for each limit, at its own number: 1 config, see include/config_format.lua; 2 shadow, see set_shadow.lua; 3 arrivals;
--        4 queues; 5 ends; 6 shadow_report. Then the configs of keys that requests name.
-- ARGV   1  limits   how many
--        2  most     requests of a limit that are reckoned at once, >= 1
--        3  reads    1: the script only reads, and what it reckons is not kept; 0: it is kept
--        4+ for each limit: six, see include/read_limits.lua (- for the first: the caller does not know it, and others reckon); how
--           many requests follow; and for each of these
--           age us, >= 0; number, 0: what an earlier one took is corrected; permits of each; at which number in KEYS the config of
--           its key is, 0: nowhere; a text that no other has, without a space; key of its bucket
-- Reply  us of this clock; then for each limit a list: what is stored about its shadow; what it would have done; requests that wait
--        to be reckoned
-- Writes, unless it only reads, arrivals: sorted set, "<number> <permits> <rule> <text> <key>" -> us; 30 days after the last. `rule`
--        is - or what is stored for the key, with commas;
--        queues: hash, key of a bucket -> see include/simulated_queue.lua; ends: sorted set, the same key -> us at which it is as if
--        nothing had been asked; both a minute and more beyond the last of these, 30 days at the most;
--        shadow_report: string, "<name>=<number> …": since us, requests, delayed (by more than LONG_US), refused (no room to wait),
--        waited us, longest us, and of the minute in which a bucket was asked for most: peak millionths of its rate, at us, count,
--        period; 30 days after the last.
local LIMITS, MOST, READS = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3] == '1'
local FIRST_LIMIT = 4
local LATE_US, MINUTE_US, DAYS_MS = 2500000, 60000000, 2592000000
local LONG_US = 10000 -- a shorter delay is not counted
local NUMBER, CORRECTS = 1, false -- see include/algorithms.lua
--!include prelude.lua
--!include now.lua
if READS then
--!include read_only.lua
end
--!include config_format.lua

local used = {} -- algorithms, see include/algorithms.lua

local function rule_of(method, count, period, burst, extra)
    used[method] = true
    return {method = method, count = tonumber(count), period = tonumber(period), burst = tonumber(burst), extra = tonumber(extra)}
end

-- The rate that is stored in a config, if it is in force, and until when it is paused.
local function stored_in(text)
    local _, expiry, paused, method, count, period, size, extra = match(text or '', CONFIG)
    if not method then return nil, 0 end
    local is_none = method == '-' or method == 'concurrency' or expiry ~= '0' and expiry - now <= 0
    return not is_none and rule_of(method, count, period, size, extra) or nil, tonumber(paused)
end

local function packed(rule)
    return format('%s,%d,%d,%d,%d', rule.method, rule.count, rule.period, rule.burst, rule.extra)
end

local function unpacked(text)
    local method, count, period, burst, extra = match(text, '^(%S+),(%d+),(%d+),(%d+),(%-?%d+)$')
    return method and rule_of(method, count, period, burst, extra) or nil
end

local limits, at = {}, FIRST_LIMIT
for i = 1, LIMITS do
    local first, number = 6 * (i - 1), tonumber(ARGV[at + 6])
    local config, paused = stored_in(call('GET', KEYS[first + 1]))
    local rule = config
        or ARGV[at] ~= '-' and rule_of(ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 5]) or nil
    local limit = {rule = rule, paused = paused, shadow = KEYS[first + 2], arrivals = KEYS[first + 3], queues = KEYS[first + 4],
        ends = KEYS[first + 5], report = KEYS[first + 6], come = {}}
    for j = at + 7, at + 6 + 6 * number, 6 do
        local own = ARGV[j + 3] ~= '0' and stored_in(call('GET', KEYS[tonumber(ARGV[j + 3])]))
        limit.come[#limit.come + 1] = {now - tonumber(ARGV[j]), format('%s %s %s %s %s', ARGV[j + 1], ARGV[j + 2],
            own and packed(own) or '-', ARGV[j + 4], ARGV[j + 5])}
    end
    if match(call('GET', limit.shadow) or '', '^0') then limit.come = {} end -- it is in force, and the reporting process does not know yet
    limit.due = rule and call('ZRANGEBYSCORE', limit.arrivals, '-inf', int(now - LATE_US), 'WITHSCORES', 'LIMIT', 0, MOST) or {}
    for j = 1, #limit.due, 2 do
        local method = match(limit.due[j], '^%d+ %-?%d+ ([%a_]+),')
        if method then used[method] = true end
    end
    limits[i], at = limit, at + 7 + 6 * number
end
--!include algorithms.lua
--!include simulated_queue.lua

local NAMES = {'since', 'requests', 'delayed', 'refused', 'waited', 'longest', 'peak', 'at', 'count', 'period'}

local function report_of(text)
    local report = {}
    for _, name in ipairs(NAMES) do report[name] = 0 end
    for name, number in string.gmatch(text or '', '(%a+)=(%d+)') do report[name] = tonumber(number) end
    return report
end

-- A minute; of a slower rate, so many that a permit comes back in them.
local function span_of(queue)
    return MINUTE_US * max(1, ceil(queue.interval / MINUTE_US))
end

local function note_minute(report, queue, at, permits)
    local span = span_of(queue)
    local minute = floor(at / span)
    if minute > queue.minute then queue.minute, queue.permits = minute, 0 end
    queue.permits = queue.permits + permits
    local peak = floor(queue.permits * 1000000 * queue.interval / span)
    if peak > report.peak then
        report.peak, report.at, report.count, report.period = peak, queue.minute * span, queue.count, queue.period
    end
end

local function reckon(limit)
    local report, queues, done = report_of(call('GET', limit.report)), {}, {}
    for i = 1, #limit.due, 2 do
        local number, permits, own, key = match(limit.due[i], '^(%d+) (%-?%d+) (%S+) %S+ (.*)$')
        local came = tonumber(limit.due[i + 1])
        local queue = queues[key]
        if not queue then
            queue = queue_of(unpacked(own) or limit.rule, call('HGET', limit.queues, key), came)
            queues[key] = queue
        end
        if report.since == 0 then report.since = came end
        if number == '0' then correct(queue, came, tonumber(permits)) end
        for _ = 1, number do
            local turn = queue_up(queue, came, tonumber(permits), limit.paused)
            local delay = turn and ceil(turn - came) or 0
            report.requests, report.waited = report.requests + 1, report.waited + delay
            if not turn then report.refused = report.refused + 1 end
            if delay > LONG_US then report.delayed = report.delayed + 1 end
            report.longest = max(report.longest, delay)
            note_minute(report, queue, came, tonumber(permits))
        end
        done[#done + 1] = limit.due[i]
    end
    call('ZREM', limit.arrivals, unpack(done))
    for key, queue in next, queues do
        local full = max(full_at(queue), (queue.minute + 1) * span_of(queue))
        call('HSET', limit.queues, key, text_of(queue))
        call('ZADD', limit.ends, format('%.0f', full), key)
    end
    local said = {}
    for i, name in ipairs(NAMES) do said[i] = format('%s=%.0f', name, report[name]) end
    local text = table.concat(said, ' ')
    call('SET', limit.report, text, 'PX', int(DAYS_MS))
    return text
end

-- Buckets for which it is as if nothing had been asked. They are kept for some time longer than that: requests that came before are
-- reckoned later.
local function clear(limit)
    for _, key in ipairs(call('ZRANGEBYSCORE', limit.ends, '-inf', int(now - LATE_US), 'LIMIT', 0, MOST)) do
        call('HDEL', limit.queues, key)
        call('ZREM', limit.ends, key)
    end
end

local function expire(limit)
    local last = tonumber(call('ZRANGE', limit.ends, -1, -1, 'WITHSCORES')[2])
    local ms = last and int(min(DAYS_MS, max(1, ceil((last - now + LATE_US + MINUTE_US) / 1000))))
    for _, key in ipairs(ms and {limit.queues, limit.ends} or {}) do call('PEXPIRE', key, ms) end
end

local answer = {int(now)}
for i, limit in ipairs(limits) do
    for _, each in ipairs(limit.come) do call('ZADD', limit.arrivals, int(each[1]), each[2]) end
    if #limit.come > 0 then call('PEXPIRE', limit.arrivals, int(DAYS_MS)) end
    local report = #limit.due > 0 and reckon(limit) or call('GET', limit.report) or ''
    if #limit.due > 0 then
        if #limit.due < 2 * MOST then clear(limit) end -- else others that have come by then are still to be reckoned
        expire(limit)
    end
    local pending = call('ZCARD', limit.arrivals) - (read_only and #limit.due / 2 or 0)
    answer[i + 1] = {call('GET', limit.shadow) or '', report, pending}
end
return answer
