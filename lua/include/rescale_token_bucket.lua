-- The rate of a token bucket has changed since the last write: the permits that are missing stay missing, and the times at which they
-- come back and at which waiting requests are due move with the rate, see rescale_time.lua. This happens once for each change, and is
-- written at once, though nothing is taken.
--
-- Uses limit, now; written, tat, rem, lent and interval, of the state; token_bucket and advance, see token_bucket.lua;
-- changed_at, moved, FAR_US and GRACE_US, see algorithms.lua. Gives nothing but what it writes into limit.
local at, factor = changed_at(limit, now, written), limit.interval / interval
local full, from = moved(limit, at, max(at, tat + min(1, rem)), factor, advance(limit, 0, 0, limit.burst + max(0, limit.extra)))
if full >= now then
    local since, fastest = match(lent, '^(%d+):?%d*:?(%S*)')
    fastest = min(tonumber(fastest) or interval, interval)
    limit.tat, limit.lent = full, format('%s:%d:%.17g', since, from, fastest)
end
if limit.cursor > at then -- a request that has a slot keeps it, at another time
    local function later(us)
        return us and min(now + FAR_US, from + ceil((us - from) * factor))
    end
    limit.cursor = later(limit.cursor)
    if read_only then limit.rescaled = later end -- read_line finds the slots as they were
    call('ZREMRANGEBYSCORE', limit.slots_key, '-inf', '(0')
    local slots = read_only and {} or call('ZRANGE', limit.slots_key, 0, -1, 'WITHSCORES')
    for i = 1, #slots, 2 do
        call('ZADD', limit.slots_key, int(later(slots[i + 1])), slots[i])
    end
    call('PEXPIRE', limit.slots_key, int(max(1, ceil((limit.cursor - now + GRACE_US) / 1000))))
end
limit.lent = limit.lent or int(now)
token_bucket.write(limit, now)
