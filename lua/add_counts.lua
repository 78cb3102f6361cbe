-- add_counts: adds up what processes have decided about limits since they told last. About once a second and process.
--
-- KEYS   for each limit, at its own number: 1 counted, 2 seconds, 3 minutes, 4 users
-- ARGV   1  most     users that are kept
--        2  limits   how many
--        3+ for each of them: "<name>=<number> …" to add to its totals; " <letter><number>…" to add to this second and minute;
--           how many users follow, and for each of these its name and its permits
-- Reply  how many limits
-- Writes all of them. Time to live: counted 30 days, users two hours, the others as long as they are of use.
local MOST, LIMITS = tonumber(ARGV[1]), tonumber(ARGV[2])
--!include prelude.lua
--!include now.lua

local gmatch, concat = string.gmatch, table.concat
local SECONDS, MINUTES = 180, 1440
-- Minutes in which a user's permits count half.
local HALF_LIFE = 10

-- What is in `text`, and what is in `more`, added up by their names.
local function sum(text, more, pattern, form)
    local order, number = {}, {}
    for _, each in ipairs({text, more}) do
        for name, value in gmatch(each, pattern) do
            if not number[name] then order[#order + 1] = name end
            number[name] = (number[name] or 0) + value
        end
    end
    for i, name in ipairs(order) do order[i] = format(form, name, number[name]) end
    return concat(order)
end

-- Adds to the last entry of a list, "<when> <letter><number>…", if it is of now; else to a new one, and the one before says only how
-- much earlier it is, unless that is 1: a day of minutes is to be small. Returns how much later this is than the last one. What
-- a clock that has stepped back says goes to the last one.
local function note(key, at, kept, ms, more)
    local when, before = match(call('LINDEX', key, -1) or '', '^(%d+)(.*)$')
    local later = when and at - when or 0
    if when and later <= 0 then
        call('LSET', key, -1, when .. sum(before, more, ' (%a)(%d+)', ' %s%d'))
    else
        if when then call('LSET', key, -1, (later == 1 and '' or int(later)) .. before) end
        call('RPUSH', key, int(at) .. more)
        call('LTRIM', key, -kept, -1)
    end
    call('PEXPIRE', key, ms)
    return later
end

local function fade(key, minutes)
    local share, users = 0.5 ^ (minutes / HALF_LIFE), call('ZRANGE', key, 0, -1, 'WITHSCORES')
    for i = 1, #users, 2 do
        local left = users[i + 1] * share
        if left < 0.5 then call('ZREM', key, users[i]) else call('ZADD', key, format('%.3f', left), users[i]) end
    end
end

-- Space-saving (Metwally et al. 2005): a full table drops its smallest entry, and the new one gets its count.
local function add_user(key, name, permits)
    local before = call('ZSCORE', key, name)
    if not before and call('ZCARD', key) >= MOST then
        local least = call('ZRANGE', key, 0, 0, 'WITHSCORES')
        call('ZREM', key, least[1])
        before = least[2]
    end
    call('ZADD', key, format('%.3f', (before or 0) + permits), name)
end

local key, at = 1, 3
local second = floor(now / 1000000)
for _ = 1, LIMITS do
    local counted, seconds, minutes, users = KEYS[key], KEYS[key + 1], KEYS[key + 2], KEYS[key + 3]
    local totals, more, number = ARGV[at], ARGV[at + 1], tonumber(ARGV[at + 2])
    call('SET', counted, sum(call('GET', counted) or '', totals, '(%S+)=(%d+)', ' %s=%d'), 'PX', 2592000000)
    note(seconds, second, SECONDS, 240000, more)
    local later = note(minutes, floor(second / 60), MINUTES, 90000000, more)
    if later > 0 then fade(users, later) end
    for i = at + 3, at + 1 + 2 * number, 2 do add_user(users, ARGV[i], tonumber(ARGV[i + 1])) end
    call('PEXPIRE', users, 7200000)
    key, at = key + 4, at + 3 + 2 * number
end
return LIMITS
