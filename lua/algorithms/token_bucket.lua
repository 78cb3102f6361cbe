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
--            then> <emission interval us> <since> <the interval again>"; expires when the bucket is full and the line is empty. `cursor` is the
--            highest score in slots: while it is past, there is no line. For the newest permit and `since` see give_back. The
--            interval is the one it was written under: when another is in force, the permits that are missing are kept, and
--            not the time that they took to come back.
--            `since` is the us at which the bucket was full last; after a change of the rate, with colons between them, also
--            the us at which the new one began and the shortest interval that was in force before. Version 26778aa wrote no
--            `since`, and looks for the interval at the sixth place and at the end.
-- slots key: sorted set, member = id of a waiting request, score = the tat that its turn would leave behind. Where a request
--            waits for another limit, its turn lies later than those before it leave the bucket: member NUL and the us at
--            which such a gap begins, score = the us at which it ends less 2^53, which is below zero. Who fits into a gap makes nobody wait.
--!include new_rate.lua
local token_bucket = {letter = '', evenly = true, lends = true}
local GAP = 2 ^ 53
local GAPS = 16 -- that a request looks into at a time

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
    local state = format('%d %d %d %d %d %s %s %s',
        limit.tat, limit.rem, limit.tat - now, limit.cursor, max(0, limit.newest - now), limit.interval, limit.lent, limit.interval)
    call('SET', limit.state_key, state, 'PX', int(ceil((full - now + STEP_US) / 1000)))
end

-- Where does request `id` stand in the line? Sets `owner` (the score of the slot it has), or else `first` (the
-- score of the first slot) and, if that is overdue, `overdue` (the member whose place it may take); whether it is `gapped`;
-- and puts the cursor right.
local function read_line(limit, now, id)
    local last = call('ZRANGE', limit.slots_key, -1, -1, 'WITHSCORES')
    limit.cursor = max(0, tonumber(last[2]) or 0)
    if limit.cursor <= now then return end -- all have come, were forgotten, or have missed their slots
    if id ~= '' then limit.owner = tonumber(call('ZSCORE', limit.slots_key, id)) end
    if limit.owner then
        limit.gapped = true -- perhaps: whoever has a slot seldom needs to know
        return
    end
    local first = call('ZRANGE', limit.slots_key, 0, 0, 'WITHSCORES')
    limit.gapped = tonumber(first[2]) < 0
    if limit.gapped then first = call('ZRANGEBYSCORE', limit.slots_key, '(0', '+inf', 'WITHSCORES', 'LIMIT', 0, 1) end
    limit.first = tonumber(first[2])
    if limit.first - limit.tolerance + GRACE_US < now then limit.overdue = first[1] end
end

-- The first turn that comes no sooner than `at`: in a gap, or behind all. When it comes; from where to where it takes the
-- bucket; the us at which what is before it was left; and the gap, with the us at which that ends.
local function find(limit, at)
    local gaps = {}
    if limit.gapped and not limit.late and not limit.last then
        local least = max(at, limit.tat) + advance(limit, 0, 0, limit.cost)
        gaps = call('ZRANGEBYSCORE', limit.slots_key, int(least - GAP), int(limit.cursor - GAP), 'WITHSCORES', 'LIMIT', 0, GAPS)
    end
    for i = 1, #gaps + 1, 2 do
        local from, from_rem, to = 0, 0, math.huge
        if gaps[i] then
            from, to = tonumber(string.sub(gaps[i], 2)), gaps[i + 1] + GAP
            if from <= limit.tat then from, from_rem = limit.tat, limit.rem end
        elseif limit.late then
            from = limit.late
        elseif limit.cursor > limit.tat then
            from = limit.cursor
        else
            from, from_rem = limit.tat, limit.rem
        end
        local us, rem = from, from_rem
        local slot = max(at, admission(limit, advance(limit, us, rem, limit.need)))
        if slot > us then
            local next, next_rem = 0, 0
            if limit.beside then
                next, next_rem = advance(limit, us, rem, ceil((slot - us) * limit.count / limit.period))
            end
            us, rem = slot, 0 -- it starts at a whole microsecond
            -- It has to wait for a slower limit, and less than a permit would be left unused before it: not if to wait on costs less.
            if next >= slot then
                local late = max(0, admission(limit, advance(limit, next, next_rem, limit.need)) - slot)
                if late * limit.whole < (limit.whole - late) * limit.beside then
                    slot = slot + late
                    us, rem = max(next, slot), next >= slot and next_rem or 0
                end
            end
        end
        local stop, stop_rem = advance(limit, us, rem, limit.cost)
        if stop < to or stop == to and stop_rem == 0 then
            return slot, us, stop, stop_rem, from + min(1, from_rem), gaps[i], to
        end
    end
end

-- The rate has changed `at` a time since the last write: the permits that are missing stay missing, the times at which they
-- come back and at which those who wait are due move with the rate, as new_rate.lua says. Once a change, so it is written at
-- once; nothing is taken.
local function rescale(limit, now, at, tat, lent, interval)
    local factor = limit.period / limit.count / interval
    local full, from = moved(limit, at, max(at, tat), factor, advance(limit, 0, 0, limit.burst + limit.extra))
    if full >= now then
        local since, fastest = match(lent, '^(%d+):?%d*:?(%S*)')
        if fastest == '' or fastest - interval > 0 then fastest = interval end
        limit.tat, limit.rem, limit.lent = full, 0, format('%s:%d:%s', since, from, fastest)
    end
    if limit.cursor > now then
        local function later(us)
            return min(now + FAR_US, from + ceil((us - from) * factor))
        end
        limit.cursor = later(limit.cursor)
        call('ZREMRANGEBYSCORE', limit.slots_key, '-inf', '(0')
        local slots = call('ZRANGE', limit.slots_key, 0, -1, 'WITHSCORES')
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
    limit.need = max(1, limit.cost - limit.extra) -- permits that have to be there
    -- How much of its price is paid by those after it.
    limit.lead = limit.cost > limit.need and advance(limit, 0, 0, limit.cost - limit.need) or 0
    limit.tat, limit.rem, limit.cursor, limit.newest, limit.lent, limit.gapped, limit.room = now, 0, 0, 0, false, false, false
    if limit.in_use then
        limit.newest = limit.in_use_at
        local tat, rem = advance(limit, limit.newest, 0, limit.in_use)
        if tat >= now then limit.tat, limit.rem = tat, rem end
        limit.lent = int(max(now, limit.newest + min(1, limit.in_use))) -- which of it was whose is not known: nothing of it is given back
    end

    local tat, rem, ahead, cursor, newest, interval, lent =
        match(limit.raw or '', '^(%d+) (%d+) (%d+) (%d+) (%d+) (%S+) ?(%S*)')
    local same = interval and interval - period / count == 0 -- 17 digits say which number it is
    limit.interval = same and interval or format('%.17g', period / count)
    if tat then
        tat, cursor = tat + 0, cursor + 0
        local written = tat - ahead
        limit.newest = written + newest
        if lent == '' then lent = int(limit.newest + 1) end -- it is not known: nothing of before is given back
        local back = written - now
        if back > STEP_US then -- no time has passed since the write; the slots mean nothing now
            tat, cursor, limit.newest, limit.changed = tat - back, 0, max(0, limit.newest - back), true
            lent = int(match(lent, '^%d+') - back) -- what was granted by that clock has had its day
        end
        limit.cursor = cursor
        if written < limit.resumed then limit.cursor, limit.changed = 0, true end
        if not same then
            rescale(limit, now, changed_at(limit, now, written), rem == '0' and tat or tat + 1, lent, interval)
        elseif tat >= now then
            limit.tat, limit.rem, limit.lent = tat, rem + 0, lent
        end
        if limit.cursor > now then read_line(limit, now, id) end
    end
    limit.lent = limit.lent or int(now)

    local grant = admission(limit, advance(limit, limit.tat, limit.rem, limit.need))
    -- A newcomer may go ahead of a line if that makes nobody in it wait: it fills a gap.
    if limit.first and not limit.overdue then
        limit.room = limit.first - limit.tolerance - advance(limit, 0, 0, limit.extra) -- at the earliest: it may use debt
        if limit.gapped and limit.first > limit.tat and not limit.paused then
            local next = limit.tat + 1
            local gap = call('ZRANGEBYSCORE', limit.slots_key, int(next - GAP), int(limit.cursor - GAP), 'WITHSCORES', 'LIMIT', 0, 1)
            if gap[1] and string.sub(gap[1], 2) - next < 0 then limit.room = max(limit.room, gap[2] + GAP) end
        end
        local tat, rem = advance(limit, limit.tat, limit.rem, limit.cost)
        limit.behind = tat > limit.room or tat == limit.room and rem > 0
        if limit.behind then
            grant = find(limit, now)
            -- A permit may be there: the first in the line, who is due, goes first, unless it does not come in time.
            limit.patience = min(limit.cursor, limit.first - limit.tolerance + GRACE_US + 1)
        end
    end
    if grant > now then limit.grant = grant end
end

-- Pass two, allowed: takes the permits at the joint time of all limits.
function token_bucket.commit(limit, now, id, joint)
    if joint > limit.tat then limit.tat, limit.rem = joint, 0 end
    limit.tat, limit.rem = advance(limit, limit.tat, limit.rem, limit.cost)
    limit.newest = max(limit.newest, joint)
    if limit.gapped then -- those that have passed, or all: nobody is behind them any more
        call('ZREMRANGEBYSCORE', limit.slots_key, '-inf', limit.owner == limit.cursor and '(0' or int(now - GAP))
    end
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

-- Pass two, refused by the one limit there is: proposes a slot, and keeps it for `id` if it lies no later than `latest`.
function token_bucket.reserve(limit, now, id, joint, latest)
    local mine = limit.owner and limit.owner - limit.tolerance - limit.lead
    if mine and mine > now then return max(mine, joint) end -- came early: its slot stands
    local slot, us, score, score_rem, from, gap, to = find(limit, joint)
    if id == '' or slot > latest then
        return slot == now and limit.behind and limit.patience or slot
    end
    score = score + min(1, score_rem)
    if gap then
        call('ZREM', limit.slots_key, gap)
    elseif limit.cursor <= now then
        call('DEL', limit.slots_key)
    elseif limit.gapped then -- nobody is behind these any more
        call('ZREMRANGEBYSCORE', limit.slots_key, '(' .. int(limit.cursor - GAP), '(0')
    end
    if gap or limit.among and not limit.late then
        local function note_gap(start, stop)
            if stop - start >= limit.whole + min(1, limit.part) then
                call('ZADD', limit.slots_key, int(stop - GAP), '\0' .. int(start))
            end
        end
        if gap then note_gap(score, to) end
        note_gap(from, us)
    end
    limit.cursor = max(limit.cursor, score)
    call('ZADD', limit.slots_key, int(score), id)
    call('PEXPIRE', limit.slots_key, int(ceil((limit.cursor - now + GRACE_US) / 1000)))
    write_state(limit, now)
    return slot
end

if NUMBER > 1 then
    -- When the slot comes that the request has, if it has one.
    function token_bucket.due(limit)
        return limit.owner and limit.owner - limit.tolerance - limit.lead
    end

    -- May the permits be taken at the joint time of all limits, ahead of now? Not before those who wait; and not where others
    -- could have those in between, if the request may keep a slot instead (`waits`).
    function token_bucket.fits(limit, now, joint, waits)
        local mine = token_bucket.due(limit)
        if mine and mine <= now + SOON_US then return true end
        if waits and joint - limit.tat >= limit.whole then return false end
        return not limit.room or max(limit.tat, joint) + advance(limit, 0, limit.rem, limit.cost) <= limit.room
    end

    -- The earliest time, `at` or later, at which a slot may lie. It stands where it is while that is to come; who comes late
    -- goes behind those who were before it. `last`: behind all.
    function token_bucket.place(limit, now, at, last)
        local mine = token_bucket.due(limit)
        if mine and mine > now and mine >= at then return mine end
        limit.last = last
        if mine and mine <= now then
            local before = call('ZCOUNT', limit.slots_key, '(0', '(' .. int(limit.owner))
            local us, rem = advance(limit, limit.tat, limit.rem, before * limit.cost)
            limit.late = us + min(1, rem)
        end
        return (find(limit, at))
    end

    -- Keeps a slot at a time that `place` has told.
    function token_bucket.claim(limit, now, id, at)
        if at == token_bucket.due(limit) then return end
        limit.owner = nil
        token_bucket.reserve(limit, now, id, at, at)
    end
end

-- Pass two, refused: a step back of the clock has to be noted, or the bucket would be locked until it catches up.
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
    return left, tat - now + (rem > 0 and 1 or 0)
end

if CORRECTS then
    -- A waiting request that will not come. The end of the line is read from the slots; between others it leaves a gap.
    function token_bucket.give_up(limit, now, id)
        local score = tonumber(call('ZSCORE', limit.slots_key, id))
        call('ZREM', limit.slots_key, id)
        if not score then return end
        token_bucket.check(limit, now, '')
        local from = score - advance(limit, 0, 0, limit.cost)
        if limit.cursor <= now or score > limit.cursor then -- nobody is behind these any more
            call('ZREMRANGEBYSCORE', limit.slots_key, '(' .. int((limit.cursor > now and limit.cursor or 0) - GAP), '(0')
        elseif from > max(now, limit.tat) then
            call('ZADD', limit.slots_key, int(score - GAP), '\0' .. int(from))
        end
    end

    -- Takes permits that were used already, whether they are there or not.
    function token_bucket.charge(limit, now, permits)
        limit.tat, limit.rem = advance(limit, limit.tat, limit.rem, permits)
        write_state(limit, now)
    end

    -- Takes back permits that were good at `at` and were not used: no more than what a bucket that never lent them
    -- would hold now, which is less by what has come back since, for it might have been full meanwhile. What others have
    -- for later than that, ahead of now, was built on these: then nothing comes back. Nor does what the bucket that is there
    -- has not lent: it was full since, or reset. Before a change time counts as it did then, at the fastest of all rates.
    function token_bucket.give_back(limit, now, at, permits)
        local since, changed, fastest = match(limit.lent, '^(%d+):?(%d*):?(%S*)')
        if limit.newest > max(now, at) or since - at > 0 then return end
        local price = permits * limit.whole + floor(permits * limit.part / limit.count)
        local gone = max(0, now - at)
        if fastest ~= '' and changed - at > 0 then
            gone = now - changed + ceil((changed - at) * (limit.period / limit.count / fastest))
        end
        local back = min(price - gone, limit.tat - max(now, at))
        if back <= 0 then return end
        limit.tat = limit.tat - back
        write_state(limit, now)
    end
end

algorithms.token_bucket = token_bucket
