--!include line.lua
-- Token bucket that is refilled in steps: `count` tokens come together every `period`, at most `burst` are kept (the
-- classic bucket of capacity, tokens per interval and interval).
--
-- Law: at most  burst + count * (floor(T/period) + 1)  permits in any interval of length T.
--
-- extra      0
-- state key: string "s<tokens> <us of the last refill> <us of the last write> <waiting>"; expires when the bucket is
--            full and the line is empty. Tokens are below zero after an overdraft (settle).
local stepped_bucket = {}

local function refill(limit, at)
    local steps = floor((at - limit.tick) / limit.period)
    if steps < 1 then return end
    limit.tokens = min(limit.burst, limit.tokens + steps * limit.count)
    limit.tick = limit.tick + steps * limit.period
end

function stepped_bucket.read(limit, now)
    limit.tokens, limit.tick = limit.burst, now
    if not limit.raw then return end
    local tokens, tick, written, waiting = match(limit.raw, '(%-?%d+) (%d+) (%d+) (%d+)')
    limit.tokens, limit.written, limit.waiting = min(limit.burst, tonumber(tokens)), tonumber(written), tonumber(waiting)
    limit.tick = tick - lost(limit, now)
    refill(limit, now)
    if limit.tokens == limit.burst then limit.tick = max(now, limit.tick) end -- a full bucket counts from its next use
end

local function full_at(limit)
    return limit.tick + ceil((limit.burst - limit.tokens) / limit.count) * limit.period
end

function stepped_bucket.write(limit, now, ttl)
    call('SET', limit.state_key, format('s%d %d %d %d', limit.tokens, limit.tick, now, limit.waiting),
        'PX', ttl(full_at(limit)))
end

function stepped_bucket.earliest(limit, now, ahead, permits)
    local missing = ahead + permits - limit.tokens
    if missing <= 0 then return max(now, limit.tick) end
    return limit.tick + ceil(missing / limit.count) * limit.period
end

function stepped_bucket.take(limit, joint, permits)
    refill(limit, joint)
    limit.tokens = limit.tokens - permits
end

function stepped_bucket.charge(limit, now, permits)
    limit.tokens = limit.tokens - permits
end

function stepped_bucket.give_back(limit, now, at, permits)
    -- A bucket that never lent them may have overflowed at each refill since.
    local refills = max(0, ceil((limit.tick - at) / limit.period))
    limit.tokens = min(limit.burst, limit.tokens + max(0, permits - refills * limit.count))
end

function stepped_bucket.state(limit, now)
    return max(0, limit.tokens), limit.tokens >= limit.burst and 0 or full_at(limit) - now
end

algorithms.stepped_bucket = counted(stepped_bucket)
