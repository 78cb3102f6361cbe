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

token_bucket.advance, token_bucket.admission = advance, admission

function token_bucket.write(limit, now)
    if limit.tat - now > FAR_US then limit.tat, limit.rem = now + FAR_US, 0 end
    local full = max(limit.tat + 1, limit.cursor + GRACE_US)
    limit.raw = format('t%d %d %d %d %d %.17g %s%s', now, max(0, limit.newest), limit.tat, limit.rem, limit.cursor,
        limit.interval, limit.lent, limit.lines or '')
    call('SET', limit.state_key, limit.raw, 'PX', int(ceil((full - now + STEP_US) / 1000)))
end

-- Pass one: sets limit.grant, the earliest time for this request if no other waits, and limit.line, whether others may wait.
function token_bucket.check(limit, now)
    local count, period = limit.count, limit.period
    limit.interval, limit.whole, limit.part = period / count, floor(period / count), period % count
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
    limit.tat, limit.rem, limit.cursor, limit.newest, limit.lent = now, 0, 0, 0, false
    if limit.used_up then
        limit.newest = limit.used_up
        local tat, rem = advance(limit, limit.newest, 0, limit.burst)
        if tat >= now then limit.tat, limit.rem = tat, rem end
        limit.lent = int(max(now, limit.newest + 1)) -- nothing of it is given back
    end

    local written, newest, tat, rem, cursor, interval, lent =
        match(limit.raw or '', '^t(%d+) (%d+) (%d+) (%d+) (%d+) (%S+) (%S+)')
    if written then
        written, tat, rem, cursor, interval = written + 0, tat + 0, rem + 0, cursor + 0, interval + 0
        limit.newest = newest + 0
        if written - now > STEP_US then -- the slots mean nothing now
            local back = written - now
            tat, cursor, limit.newest, limit.changed = tat - back, 0, limit.newest - back, true
            lent = int(match(lent, '^%d+') - back) -- what was granted by that clock has had its day
        end
        limit.cursor = cursor
        if written < limit.resumed then limit.cursor, limit.changed = 0, true end
        if interval ~= limit.interval then -- 17 digits say which number it is
--!include rescale_token_bucket.lua
        elseif tat >= now then
            limit.tat, limit.rem, limit.lent = tat, rem, lent
        end
    end
    limit.lent = limit.lent or int(now)
    limit.line = limit.cursor > now
    limit.grant = max(now, admission(limit, advance(limit, limit.tat, limit.rem, limit.need)))
end

-- Pass two, allowed: takes the permits at the joint time of all limits.
function token_bucket.commit(limit, now, id, joint)
    if joint > limit.tat then limit.tat, limit.rem = joint, 0 end
    limit.tat, limit.rem = advance(limit, limit.tat, limit.rem, limit.cost)
    limit.newest = max(limit.newest, joint)
    if limit.line then token_bucket.leave_line(limit, now, id) end
    if limit.cursor > 0 and limit.cursor <= now then
        call('DEL', limit.slots_key) -- every slot has passed: a request that comes late finds no line, and needs none
        limit.cursor = 0
    end
    token_bucket.write(limit, now)
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
    end

    -- Takes back permits that were good at `at` and were not used; false: nothing comes back, and nothing is to be written. The bucket gets no more than it would hold now if it had never
    -- granted them: less what has come back since, for it might have been full meanwhile. Nothing comes back if other requests
    -- have permits that are good later, ahead of now: these were reckoned from the ones that come back. Nor if the bucket was
    -- full since, or reset: it has not granted them. The time before a change of the rate counts at the fastest of all rates.
    function token_bucket.give_back(limit, now, at, permits)
        local since, changed, fastest = match(limit.lent, '^(%d+):?(%d*):?(%S*)')
        since, changed, fastest = since + 0, tonumber(changed), tonumber(fastest)
        if limit.newest > max(now, at) or since > at then return false end
        local gone = max(0, now - at)
        if changed and changed > at then gone = now - changed + ceil((changed - at) * (limit.interval / fastest)) end
        local back = min(advance(limit, 0, 0, permits) - gone, limit.tat - max(now, at))
        if back <= 0 then return false end
        limit.tat = limit.tat - back
    end
end

algorithms.token_bucket = token_bucket
