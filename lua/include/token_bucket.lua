-- Token bucket, kept as one timestamp: the generic cell rate algorithm (ITU-T I.371, virtual scheduling).
--
-- Law: at most  burst + count/period * T  permits in any interval of length T (and `debt` more where that is allowed).
--
-- `tat`, the theoretical arrival time, is when the bucket will be full again. A permit costs one emission
-- interval, period/count, which is seldom a whole number of microseconds: 3/s is 333,333 1/3. So times are
-- pairs: whole microseconds, and a remainder counted in 1/count of a microsecond. Nothing is ever rounded
-- but the answer, and that upwards: whoever waits that long is not turned away.
--
-- Who is refused may keep a slot: a proposal of when to come back, never a permit. Only `tat` decides.
--
-- extra      permits   debt: a call goes through when one permit is there, and may overdraw the bucket by so many
-- state key: string "<tat us> <remainder> <us from the last write to tat> <cursor us> <us by which the newest permit lay ahead
--            then> <emission interval us>"; expires when the bucket is full and the line is empty. `cursor` is the highest
--            score in slots: while it is past, there is no line. For the newest permit see give_back. The interval is the one
--            it was written under: when another is in force, the permits that are missing are kept, and not the time that
--            they took to come back.
-- slots key: sorted set, member = id of a waiting request, score = the tat that its turn would leave behind.
local token_bucket = {}

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
    local full = max(limit.tat + 1, limit.cursor + GRACE_US)
    local state = format('%d %d %d %d %d %s',
        limit.tat, limit.rem, limit.tat - now, limit.cursor, max(0, limit.newest - now), limit.interval)
    call('SET', limit.state_key, state, 'PX', int(ceil((full - now + STEP_US) / 1000)))
end

-- Where does request `id` stand in the line? Sets `owner` (the score of the slot it has), or else `first` (the
-- score of the first slot) and, if that is overdue, `overdue` (the member whose place it may take); and puts the
-- cursor right.
local function read_line(limit, now, id)
    local last = call('ZRANGE', limit.slots_key, -1, -1, 'WITHSCORES')
    limit.cursor = tonumber(last[2]) or 0
    if limit.cursor <= now then return end -- all have come, were forgotten, or have missed their slots
    if id ~= '' then limit.owner = tonumber(call('ZSCORE', limit.slots_key, id)) end
    if limit.owner then return end
    local first = call('ZRANGE', limit.slots_key, 0, 0, 'WITHSCORES')
    limit.first = tonumber(first[2])
    if limit.first - limit.tolerance + GRACE_US < now then limit.overdue = first[1] end
end

-- The tat that the last in the line leaves behind.
local function line_end(limit)
    if limit.cursor > limit.tat then return limit.cursor, 0 end
    return limit.tat, limit.rem
end

-- The rate has changed since the last write: the permits that are missing stay missing, the times at which they come back
-- and at which those who wait are due move with the rate; from the newest permit on, if that lies ahead: what was granted
-- stays. Once a change, so it is written at once; nothing is taken.
local function rescale(limit, now, factor)
    local from = max(now, min(limit.newest, limit.tat))
    limit.tat, limit.rem = from + ceil((limit.tat - from) * factor), 0
    if limit.cursor > now then
        limit.cursor = from + ceil((limit.cursor - from) * factor)
        local slots = call('ZRANGE', limit.slots_key, 0, -1, 'WITHSCORES')
        for i = 1, #slots, 2 do
            call('ZADD', limit.slots_key, int(from + ceil((slots[i + 1] - from) * factor)), slots[i])
        end
        call('PEXPIRE', limit.slots_key, int(ceil((limit.cursor - now + GRACE_US) / 1000)))
    end
    write_state(limit, now)
end

-- Pass one: sets limit.grant, the earliest time for this request, and limit.behind, whether others come first.
function token_bucket.check(limit, now, id)
    local count, period = limit.count, limit.period
    limit.whole, limit.part = floor(period / count), period % count
    limit.interval = limit.part == 0 and int(limit.whole) or format('%.17g', period / count)
    limit.tolerance, limit.tolerance_rem = advance(limit, 0, 0, limit.burst)
    limit.need = max(1, limit.cost - limit.extra) -- permits that have to be there
    limit.lead = advance(limit, 0, 0, limit.cost - limit.need) -- how much of its price is paid by those after it
    limit.tat, limit.rem, limit.cursor, limit.newest = now, 0, 0, 0
    if limit.in_use then limit.tat, limit.rem = advance(limit, now, 0, limit.in_use) end

    if limit.raw then
        local tat, rem, ahead, cursor, newest, interval = match(limit.raw, '(%d+) (%d+) (%d+) (%d+) (%d+) (%S+)')
        tat, cursor = tonumber(tat), tonumber(cursor)
        local written = tat - ahead
        limit.newest = written + newest
        local back = written - now
        if back > STEP_US then -- no time has passed since the write; the slots mean nothing now
            tat, cursor, limit.newest, limit.changed = tat - back, 0, max(0, limit.newest - back), true
        end
        if tat >= now then limit.tat, limit.rem = tat, tonumber(rem) end
        limit.cursor = cursor
        if written < limit.resumed then limit.cursor, limit.changed = 0, true end
        if interval ~= limit.interval then rescale(limit, now, period / count / interval) end
        if limit.cursor > now then read_line(limit, now, id) end
    end

    local grant = admission(limit, advance(limit, limit.tat, limit.rem, limit.need))
    -- A newcomer may go ahead of a line if that makes nobody in it wait: it fills a gap that was given back.
    if limit.first and not limit.overdue then
        local slot = limit.first - limit.tolerance - advance(limit, 0, 0, limit.extra) -- at the earliest: it may use debt
        local tat, rem = advance(limit, limit.tat, limit.rem, limit.cost)
        limit.behind = tat > slot or tat == slot and rem > 0
        if limit.behind then
            tat, rem = line_end(limit)
            grant = admission(limit, advance(limit, tat, rem, limit.need))
        end
    end
    if grant > now then limit.grant = grant end
end

-- Pass two, allowed: takes the permits at the joint time of all limits.
function token_bucket.commit(limit, now, id, joint)
    if joint > limit.tat then limit.tat, limit.rem = joint, 0 end
    limit.tat, limit.rem = advance(limit, limit.tat, limit.rem, limit.cost)
    limit.newest = max(limit.newest, joint)
    if limit.owner then
        call('ZREM', limit.slots_key, id)
    elseif limit.overdue then
        call('ZREM', limit.slots_key, limit.overdue)
    elseif limit.cursor > 0 and limit.cursor <= now then
        call('DEL', limit.slots_key) -- every slot has passed: who comes late finds no line, and needs none
        limit.cursor = 0
    end
    write_state(limit, now)
end

-- Pass two, refused by this limit: proposes a slot, and keeps it for `id` if it lies no later than `latest`.
function token_bucket.reserve(limit, now, id, joint, latest)
    local mine = limit.owner and limit.owner - limit.tolerance - limit.lead
    if mine and mine > now then return max(mine, joint) end -- came early: its slot stands
    local tat, rem = line_end(limit)
    local slot = max(joint, admission(limit, advance(limit, tat, rem, limit.need)))
    if slot > tat then tat, rem = slot, 0 end -- it starts at a whole microsecond
    local score, score_rem = advance(limit, tat, rem, limit.cost)
    if score_rem > 0 then score = score + 1 end
    if id ~= '' and slot <= latest then
        if limit.cursor <= now then call('DEL', limit.slots_key) end
        limit.cursor = score
        call('ZADD', limit.slots_key, int(score), id)
        call('PEXPIRE', limit.slots_key, int(ceil((score - now + GRACE_US) / 1000)))
        write_state(limit, now)
    elseif slot == now and limit.behind then
        -- A permit is there, and the first in the line is due: it goes first, unless it does not come in time.
        return min(limit.cursor, limit.first - limit.tolerance + GRACE_US + 1)
    end
    return slot
end

-- Pass two, refused: a step back of the clock has to be noted, or the bucket would be locked until it catches up.
function token_bucket.refuse(limit, now)
    if limit.changed then write_state(limit, now) end
end

-- A waiting request that will not come. The end of the line is read from the slots, so nothing else changes.
function token_bucket.leave(limit, now, id)
    call('ZREM', limit.slots_key, id)
end

-- Takes permits that were used already, whether they are there or not.
function token_bucket.charge(limit, now, permits)
    limit.tat, limit.rem = advance(limit, limit.tat, limit.rem, permits)
    write_state(limit, now)
end

-- Takes back permits that were good at `at` and were not used: no more than what a bucket that never lent them
-- would hold now, which is less by what has come back since, for it might have been full meanwhile. What others have
-- for later than that, ahead of now, was built on these: then nothing comes back.
function token_bucket.give_back(limit, now, at, permits)
    if limit.newest > max(now, at) then return end
    local price = permits * limit.whole + floor(permits * limit.part / limit.count)
    local back = min(price - max(0, now - at), limit.tat - max(now, at))
    if back <= 0 then return end
    limit.tat = limit.tat - back
    write_state(limit, now)
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
    return left, tat - now + (rem > 0 and 1 or 0)
end

algorithms.token_bucket = token_bucket
