-- Token bucket that is refilled in steps: `count` tokens come together every `period`, at most `burst` are kept (the
-- classic bucket of capacity, tokens per interval and interval).
--
-- Law: at most  burst + count * (floor(T/period) + 1)  permits in any interval of length T.
--
-- extra      0
-- state key: string "s<us of the last write> <us of the newest permit> <waiting> <tokens> <us of the last refill> <began us>
--            <burst> <count> <period us>"; expires when the bucket is full and the line is empty. Tokens are below zero
--            after an overdraft (settle). `began`: what was granted earlier does not count here. The last three are the rule
--            it was written under: when another is in force, what is missing stays missing, and no more is there than was.
local stepped_bucket = {letter = 's'}

local function refill(limit, at)
    local steps = floor((at - limit.tick) / limit.period)
    if steps < 1 then return end
    limit.tokens = min(limit.burst, limit.tokens + steps * limit.count)
    limit.tick = limit.tick + steps * limit.period
end

local function full_at(limit)
    return limit.tick + ceil((limit.burst - limit.tokens) / limit.count) * limit.period
end

-- Another rule is in force from then on.
local function change(limit, at, burst, count, period)
    local tokens = limit.tokens
    limit.changed = true
    if limit.tick > at then -- refilled already for a permit that lies ahead: now at the new pace
        local ahead = limit.tick - at
        local refilled = min(limit.burst, ceil(ahead / limit.period) * limit.count)
        tokens = min(tokens, tokens - refilled + floor(ahead / period) * count)
    elseif limit.tick + period <= at then
        limit.tick = at
    end
    limit.tokens = min(tokens, tokens + burst - limit.burst)
    limit.burst, limit.count, limit.period, limit.began = burst, count, period, at
end

local function cap(limit)
    limit.tokens = max(limit.tokens, limit.burst - limit.count * floor(FAR_US / limit.period))
end

function stepped_bucket.advance(limit, now)
    refill(limit, now)
    if limit.tokens == limit.burst then limit.tick = max(now, limit.tick) end -- a full bucket counts from its next use
end

function stepped_bucket.read(limit, now)
    limit.tokens, limit.tick, limit.newest, limit.began = limit.burst, now, 0, now
    local written, newest, waiting, tokens, tick, began, size, n, each =
        match(limit.raw or '', '^s(%d+) (%d+) (%d+) (%-?%d+) (%d+) (%d+) (%d+) (%d+) (%d+)$')
    if not written then return end
    limit.written, limit.waiting = written + 0, waiting + 0
    local back = lost(limit.written, now)
    limit.tokens, limit.tick, limit.newest, limit.began = tokens + 0, tick - back, newest - back, began - back
    local burst, count, period = limit.burst, limit.count, limit.period
    limit.burst, limit.count, limit.period = size + 0, n + 0, each + 0
    if limit.burst ~= burst or limit.count ~= count or limit.period ~= period then
        local at = changed_at(limit, now, limit.written)
        refill(limit, at)
        change(limit, at, burst, count, period)
        cap(limit)
    end
    stepped_bucket.advance(limit, now)
end

function stepped_bucket.write(limit, now)
    call('SET', limit.state_key, format('s%d %d %d %d %d %d %d %d %d', now, max(0, limit.newest), limit.waiting, limit.tokens,
        limit.tick, max(0, limit.began), limit.burst, limit.count, limit.period), 'PX', kept_ms(limit, now, full_at(limit)))
end

function stepped_bucket.earliest(limit, now, ahead, permits)
    local missing = ahead + permits - limit.tokens
    if missing <= 0 then return max(now, limit.tick) end
    return limit.tick + ceil(missing / limit.count) * limit.period
end

function stepped_bucket.take(limit, joint, permits)
    refill(limit, joint)
    limit.tokens, limit.newest = limit.tokens - permits, max(limit.newest, joint)
end

if CORRECTS then
    function stepped_bucket.charge(limit, now, permits)
        limit.tokens = limit.tokens - permits
        cap(limit)
    end

    function stepped_bucket.give_back(limit, now, at, permits)
        if at < limit.began then return end
        -- A bucket that never lent them may have overflowed at each refill since.
        local refills = max(0, ceil((limit.tick - at) / limit.period))
        limit.tokens = min(limit.burst, limit.tokens + max(0, permits - refills * limit.count))
    end
end

function stepped_bucket.state(limit, now)
    return max(0, limit.tokens), limit.tokens >= limit.burst and 0 or full_at(limit) - now
end

algorithms.stepped_bucket = setmetatable(stepped_bucket, counted)
