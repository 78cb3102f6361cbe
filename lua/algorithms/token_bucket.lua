-- Token bucket, kept as one timestamp: the generic cell rate algorithm (ITU-T I.371, virtual scheduling).
--
-- Law: at most  burst + count/period * T  permits in any interval of length T (and `debt` more where that is allowed).
--
-- `tat`, the theoretical arrival time, is when the bucket will be full again. A permit costs one emission
-- interval, period/count, which is seldom a whole number of microseconds: 3/s is 333,333 1/3. So times are
-- pairs: whole microseconds, and a remainder counted in 1/count of a microsecond. Nothing is ever rounded
-- but the answer, and that upwards: a request that waits that long is not turned away.
--
-- Which requests wait, and when each of them may go, is in token_line.lua.
--
-- extra      permits   debt: a call goes through when one permit is there, and may overdraw the bucket by so many
--                      below -1: the limit sets a part of its burst aside for important calls, and has no debt: less 10^6 times the
--                      millionths of the burst that the call leaves, less the millionths that are set aside in all. A call goes
--                      through when what it leaves is there besides what it costs; it takes what it costs.
-- state key: string "t<us of the last write> <us of the newest permit> <tat us> <remainder> <cursor us> <emission interval us>
--            <since> <lines>"; expires when the bucket is full and the line is empty. `lines` are those of important calls that
--            wait, see token_line.lua; there may be none.
--            `cursor` is the highest score in slots: while it is past, there is no line. For the newest permit and `since` see
--            give_back. The interval is the one of the rate at the last write: when another is in force, the permits that are
--            missing are kept, and not the time that they took to come back.
--            `since` is the us at which the bucket was full last; after a change of the rate, with colons between them, also
--            the us at which the new one began and the shortest interval that was in force before.
local token_bucket = {letter = 't', evenly = true, lends = true}

-- The time `permits` emission intervals after (us, rem).
local function advance(limit, us, rem, permits)
    local sum = rem + permits * limit.part
    return us + permits * limit.whole + floor(sum / limit.count), sum % limit.count
end

-- When a tat of (us, rem) comes within the burst: us + rem/count - burst*interval, rounded up.
local function admission(limit, us, rem)
    us = us - limit.tolerance
    if rem > limit.tolerance_rem then return us + 1 end
    return us
end

local function write_state(limit, now)
    if limit.tat - now > FAR_US then limit.tat, limit.rem = now + FAR_US, 0 end
    local full = max(limit.tat + 1, limit.cursor + GRACE_US)
    local state = format('t%d %d %d %d %d %.17g %s%s', now, max(0, limit.newest), limit.tat, limit.rem, limit.cursor,
        limit.interval, limit.lent, limit.lines or '')
    call('SET', limit.state_key, state, 'PX', int(ceil((full - now + STEP_US) / 1000)))
end

--!include token_line.lua
-- The rate has changed `at` a time since the last write: the permits that are missing stay missing, the times at which they
-- come back and at which waiting requests are due move with the rate, as new_rate.lua says. Once a change, so it is written at
-- once; nothing is taken.
local function rescale(limit, now, at, tat, lent, interval)
    local factor = limit.interval / interval
    local full, from = moved(limit, at, max(at, tat), factor, advance(limit, 0, 0, limit.burst + max(0, limit.extra)))
    if full >= now then
        local since, fastest = match(lent, '^(%d+):?%d*:?(%S*)')
        fastest = min(tonumber(fastest) or interval, interval)
        limit.tat, limit.rem, limit.lent = full, 0, format('%s:%d:%.17g', since, from, fastest)
    end
    if limit.cursor > at then -- who stood there then stands there still, later
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
    write_state(limit, now)
end

-- Pass one: sets limit.grant, the earliest time for this request, and limit.behind, whether others come first.
function token_bucket.check(limit, now, id)
    local count, period = limit.count, limit.period
    limit.whole, limit.part = floor(period / count), period % count
    limit.tolerance, limit.tolerance_rem = advance(limit, 0, 0, limit.burst)
    limit.need = limit.extra > 0 and max(1, limit.cost - limit.extra) or limit.cost -- permits that have to be there
    -- How much of its price is paid by the requests after it, in us. Below zero: how much later it comes for what it leaves.
    limit.lead = limit.cost > limit.need and advance(limit, 0, 0, limit.cost - limit.need) or 0
    if limit.extra < -1 then -- it sets a part aside. (Only then are there more fields: a larger table costs time.)
        local most, own = -limit.extra % 1000000, floor(-limit.extra / 1000000) -- millionths: in all, and what this call leaves
        limit.own, limit.tail, limit.lines, limit.late = own, 0, '', nil
        limit.passes = own < most -- it goes before calls that leave more
        -- In permits. No call is impossible: when the bucket is full, all may be taken.
        limit.leaves = max(0, min(floor(own * limit.burst / 1000000), limit.burst - limit.cost))
        limit.need = limit.cost + limit.leaves
        local us, rem = advance(limit, 0, 0, limit.leaves)
        limit.lead = -us - min(1, rem)
        -- No call has its turn by more than that later than one that leaves nothing.
        limit.shares = advance(limit, 0, 0, floor(most * limit.burst / 1000000) + 1)
    end
    limit.tat, limit.rem, limit.cursor, limit.newest, limit.lent, limit.gapped, limit.room = now, 0, 0, 0, false, false, false
    if limit.used_up then
        limit.newest = limit.used_up
        local tat, rem = advance(limit, limit.newest, 0, limit.burst)
        if tat >= now then limit.tat, limit.rem = tat, rem end
        limit.lent = int(max(now, limit.newest + 1)) -- nothing of it is given back
    end

    local written, newest, tat, rem, cursor, interval, lent =
        match(limit.raw or '', '^t(%d+) (%d+) (%d+) (%d+) (%d+) (%S+) (%S+)')
    limit.interval = period / count
    if written then
        written, limit.newest, tat, rem, cursor, interval = written + 0, newest + 0, tat + 0, rem + 0, cursor + 0, interval + 0
        local same = interval == limit.interval -- 17 digits say which number it is
        local back = lost(written, now)
        if back > 0 then -- the slots mean nothing now
            tat, cursor, limit.newest, limit.changed = tat - back, 0, limit.newest - back, true
            lent = int(match(lent, '^%d+') - back) -- what was granted by that clock has had its day
        end
        limit.cursor = cursor
        if written < limit.resumed then limit.cursor, limit.changed = 0, true end
        if not same then
            rescale(limit, now, changed_at(limit, now, written), tat + min(1, rem), lent, interval)
        elseif tat >= now then
            limit.tat, limit.rem, limit.lent = tat, rem, lent
        end
        if limit.cursor > now then read_line(limit, now, id, same) end
    end
    limit.lent = limit.lent or int(now)

    local grant = admission(limit, advance(limit, limit.tat, limit.rem, limit.need))
    -- A newcomer may go ahead of a line if that makes nobody in it wait: it fills a gap.
    if limit.first and not limit.overdue then
        limit.room = limit.first - limit.tolerance - advance(limit, 0, 0, max(0, limit.extra)) -- at the earliest: it may use debt
        if limit.gapped and limit.first > limit.tat and not limit.paused then
            local next = limit.tat + 1
            local gap = call('ZRANGEBYSCORE', limit.slots_key, int(next - GAP), int(limit.cursor - GAP), 'WITHSCORES', 'LIMIT', 0, 1)
            if gap[1] and string.sub(gap[1], 2) - next < 0 then limit.room = max(limit.room, gap[2] + GAP) end
        end
        local tat, rem = advance(limit, limit.tat, limit.rem, limit.cost)
        limit.behind = tat > limit.room or tat == limit.room and rem > 0
        if limit.behind then
            grant = find(limit, now)
            -- A permit may be there: the first request of the line, which is due, goes first, unless it does not come in time.
            limit.patience = min(limit.cursor, limit.first - limit.tolerance + (limit.shares or 0) + GRACE_US + 1)
        end
    elseif limit.passes and not limit.owner then
        grant = find(limit, now)
        limit.behind = grant > now and limit.tail > limit.tat
    end
    if grant > now then limit.grant = grant end
end

-- Pass two, allowed: takes the permits at the joint time of all limits.
function token_bucket.commit(limit, now, id, joint)
    if joint > limit.tat then limit.tat, limit.rem = joint, 0 end
    limit.tat, limit.rem = advance(limit, limit.tat, limit.rem, limit.cost)
    limit.newest = max(limit.newest, joint)
    if limit.gapped then -- gaps that have passed, or all: no slot lies behind them any more
        call('ZREMRANGEBYSCORE', limit.slots_key, '-inf', limit.owner == limit.cursor and '(0' or int(now - GAP))
    end
    if limit.owner then
        call('ZREM', limit.slots_key, id)
    elseif limit.overdue then
        call('ZREM', limit.slots_key, limit.overdue)
    elseif limit.cursor > 0 and limit.cursor <= now then
        call('DEL', limit.slots_key) -- every slot has passed: a request that comes late finds no line, and needs none
        limit.cursor = 0
    end
    write_state(limit, now)
end

-- Pass two, nothing taken: a step back of the clock has to be noted, or the bucket would be closed until the clock catches up.
function token_bucket.note_change(limit, now)
    if limit.changed then write_state(limit, now) end
end

-- What is left right now: permits that could be taken at once, and microseconds until the bucket is full.
function token_bucket.state(limit, now)
    local tat, rem = limit.tat, limit.rem
    local left = floor((now + limit.tolerance - tat) * limit.count / limit.period)
    if left < 0 then left = 0 end
    -- The quotient may be off by one where it is rounded; the definition is that `left` permits fit now.
    if left < limit.burst and admission(limit, advance(limit, tat, rem, left + 1)) <= now then
        left = left + 1
    elseif left > 0 and admission(limit, advance(limit, tat, rem, left)) > now then
        left = left - 1
    end
    if limit.leaves then left = max(0, left - limit.leaves) end
    return left, tat - now + (rem > 0 and 1 or 0)
end

if CORRECTS then
    -- Takes permits that were used already, whether they are there or not.
    function token_bucket.charge(limit, now, permits)
        limit.tat, limit.rem = advance(limit, limit.tat, limit.rem, permits)
        write_state(limit, now)
    end

    -- Takes back permits that were good at `at` and were not used. The bucket gets no more than it would hold now if it had never
    -- granted them: less what has come back since, for it might have been full meanwhile. Nothing comes back if other requests
    -- have permits that are good later, ahead of now: these were reckoned from the ones that come back. Nor if the bucket was
    -- full since, or reset: it has not granted them. The time before a change of the rate counts at the fastest of all rates.
    function token_bucket.give_back(limit, now, at, permits)
        local since, changed, fastest = match(limit.lent, '^(%d+):?(%d*):?(%S*)')
        if limit.newest > max(now, at) or since - at > 0 then return end
        local price = permits * limit.whole + floor(permits * limit.part / limit.count)
        local gone = max(0, now - at)
        if fastest ~= '' and changed - at > 0 then
            gone = now - changed + ceil((changed - at) * (limit.interval / fastest))
        end
        local back = min(price - gone, limit.tat - max(now, at))
        if back <= 0 then return end
        limit.tat = limit.tat - back
        write_state(limit, now)
    end
end

algorithms.token_bucket = token_bucket
