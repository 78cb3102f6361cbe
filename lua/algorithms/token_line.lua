-- The line of the token bucket: which requests wait, and when each of them may go.
--
-- A request that is refused may keep a slot: a proposal of when to ask again, never a permit. Only `tat` decides. A slot stands in the
-- line by its score: the tat that the bucket would have after its turn. So the next request stands behind the highest score, which
-- is the `cursor`.
--
-- A request that waits for another limit, too, has its turn later than the requests before it leave the bucket free. The time
-- between is a gap: a request that fits into it makes no other wait.
--
-- Calls of a limit that sets something aside for the important ones (`limit.passes`, see token_bucket.lua): each kind that leaves
-- less than others has a line of its own, ahead of theirs, kept in the state as " <millionths that it leaves>=<us: the highest score>"
-- for each; its slots are among all slots. It passes those that leave more, which ask at their slots and are told to come later.
--
-- slots key: sorted set, id of a waiting request -> its score, us. NUL and the us at which a gap begins -> the us at which it ends,
--            less 2^53: a score below zero. Expires a second after the last slot.
--
-- Uses algorithms; look, see load_line_functions.lua. Gives of the algorithm join, leave_line, reserve, due, fits, place, claim, give_up.
local token_bucket = algorithms.token_bucket
local advance, admission = token_bucket.advance, token_bucket.admission
local GAP = 2 ^ 53
local GAPS = 16 -- that a request looks into at a time

-- Where does request `id` stand in the line? Sets, in `limit`:
--   cursor    the highest score
--   owner     the score of the slot that the request has; if it has none:
--   first     the score of the first slot
--   overdue   the id that has the first slot, if that is overdue: the request may take its place
--   gapped    whether the line has gaps
-- Of a limit that sets something aside, also `tail`: behind which tat it stands, if it has no slot.
local function read_line(limit, now, id)
    local us_of = limit.rescaled or tonumber -- of a slot, by the rate that is in force
    local last = call('ZRANGE', limit.slots_key, -1, -1, 'WITHSCORES')
    limit.cursor = max(0, us_of(last[2]) or 0)
    if limit.cursor <= now then return end -- all requests have come, were forgotten, or have missed their slots
    if limit.extra < -1 then
        for own, us in string.gmatch(limit.raw or '', ' (%d+)=(%d+)') do
            own, us = own + 0, us + 0
            if us > now then
                if own <= limit.own then limit.tail = max(limit.tail, us) end
                limit.lines = format('%s %d=%d', limit.lines, own, us)
            end
        end
        if limit.passes then
            local score = id ~= '' and us_of(call('ZSCORE', limit.slots_key, id))
            limit.owner = score and (limit.tail > 0 and min(score, limit.tail) or score) -- others' slots may have moved, and its own
            return
        end
        -- Important calls have taken permits meanwhile: waiting requests get later turns than they were told.
        local us, rem = advance(limit, limit.tat, limit.rem, call('ZCOUNT', limit.slots_key, '(0', '+inf') * limit.cost)
        limit.tail = max(limit.tail, limit.cursor, us + min(1, rem))
    end
    if id ~= '' then limit.owner = us_of(call('ZSCORE', limit.slots_key, id)) end
    if limit.owner then
        limit.gapped = not limit.rescaled -- perhaps: a request that has a slot seldom needs to know
        return
    end
    local first = call('ZRANGE', limit.slots_key, 0, 0, 'WITHSCORES')
    limit.gapped = tonumber(first[2]) < 0
    if limit.gapped then first = call('ZRANGEBYSCORE', limit.slots_key, '(0', '+inf', 'WITHSCORES', 'LIMIT', 0, 1) end
    limit.gapped = limit.gapped and not limit.rescaled -- a change of the rate closes the gaps
    limit.first = us_of(first[2])
    if limit.first - limit.tolerance + (limit.shares or 0) + GRACE_US < now then limit.overdue = first[1] end
end

-- The first turn that comes no sooner than `at`: in a gap, or behind all. Returns
--   slot             us at which the turn comes
--   us               the tat before it
--   stop, stop_rem   the tat after it
--   from             us from which the bucket was free before it
--   gap, to          the gap, if it is in one, and the us at which that ends
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
        elseif (limit.tail or limit.cursor) > limit.tat then
            from = limit.tail or limit.cursor
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
            -- The request has to wait for a slower limit, and less than a permit would lapse before it: if to wait for that permit
            -- costs less, it waits.
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

-- The bucket is not free at the slot of the request: it goes behind those that stood before it, and may still come.
local function come_late(limit, now)
    local before = limit.passes and 0
        or call('ZCOUNT', limit.slots_key, '(' .. int(max(0, now - GRACE_US)), '(' .. int(limit.owner))
    local us, rem = advance(limit, limit.tat, limit.rem, before * limit.cost)
    limit.late = us + min(1, rem)
end

-- The slots behind the one that the request had come later, in their order, if the first of them has to: its request needs permits
-- after a tat of (us, rem).
local function move_back(limit, us, rem)
    local slots = call('ZRANGEBYSCORE', limit.slots_key, '(' .. int(limit.owner), '+inf', 'WITHSCORES')
    us, rem = advance(limit, us, rem, limit.cost)
    local by = slots[2] and us + min(1, rem) - slots[2] or 0
    if by <= 0 then return end
    call('ZREMRANGEBYSCORE', limit.slots_key, '-inf', '(0') -- the gaps
    for i = 1, #slots, 2 do call('ZADD', limit.slots_key, int(slots[i + 1] + by), slots[i]) end
    limit.cursor = slots[#slots] + by
end

-- Pass one, where requests wait: sets limit.grant and limit.behind, whether others come first.
function token_bucket.join(limit, now, id)
    read_line(limit, now, id)
    -- A newcomer may go ahead of a line if that makes no request in it wait: it fills a gap.
    if limit.first and not limit.overdue then
        limit.room = limit.first - limit.tolerance - advance(limit, 0, 0, max(0, limit.extra)) -- at the earliest: it may use debt
        if limit.gapped and limit.first > limit.tat and not limit.paused then
            local next = limit.tat + 1
            local gap = call('ZRANGEBYSCORE', limit.slots_key, int(next - GAP), int(limit.cursor - GAP), 'WITHSCORES', 'LIMIT', 0, 1)
            if gap[1] and string.sub(gap[1], 2) + 0 < next then limit.room = max(limit.room, gap[2] + GAP) end
        end
        local tat, rem = advance(limit, limit.tat, limit.rem, limit.cost)
        limit.behind = tat > limit.room or tat == limit.room and rem > 0
        if limit.behind then
            limit.grant = max(now, (find(limit, now)))
            -- A permit may be there: the first request of the line, which is due, goes first, unless it does not come in time.
            limit.patience = min(limit.cursor, limit.first - limit.tolerance + (limit.shares or 0) + GRACE_US + 1)
        end
    elseif limit.passes and not limit.owner then
        limit.grant = max(now, (find(limit, now)))
        limit.behind = limit.grant > now and limit.tail > limit.tat
    end
end

-- Pass two, allowed: the request needs its slot no more, or the overdue one in whose place it goes.
function token_bucket.leave_line(limit, now, id)
    if limit.gapped then -- gaps that have passed, or all: no slot lies behind them any more
        call('ZREMRANGEBYSCORE', limit.slots_key, '-inf', limit.owner == limit.cursor and '(0' or int(now - GAP))
    end
    if limit.owner or limit.overdue then call('ZREM', limit.slots_key, limit.owner and id or limit.overdue) end
end

-- Pass two, refused: proposes a slot, and keeps it for `id` if it lies no later than `latest`.
function token_bucket.reserve(limit, now, id, joint, latest)
    local mine = limit.owner and limit.owner - limit.tolerance - limit.lead
    if mine and mine > now then return max(mine, joint) end -- came early: its slot stands
    if mine then come_late(limit, now) end
    local slot, us, score, score_rem, from, gap, to = find(limit, joint)
    if id == '' or slot > latest then
        return slot == now and limit.behind and limit.patience or slot
    end
    if mine and not limit.passes then
        if limit.tail and score - limit.owner <= GRACE_US / 2 then return slot end -- important calls go before it all the time
        move_back(limit, score, score_rem)
    end
    score = score + min(1, score_rem)
    if gap then
        call('ZREM', limit.slots_key, gap)
    elseif limit.cursor <= now then
        call('DEL', limit.slots_key)
    elseif limit.gapped then -- no slot lies behind these gaps any more
        call('ZREMRANGEBYSCORE', limit.slots_key, '(' .. int(limit.cursor - GAP), '(0')
    end
    if gap or limit.among and not limit.late and not limit.passes then
        local function note_gap(start, stop)
            if stop - start >= limit.whole then
                call('ZADD', limit.slots_key, int(stop - GAP), '\0' .. int(start))
            end
        end
        if gap then note_gap(score, to) end
        note_gap(from, us)
    end
    limit.cursor = max(limit.cursor, score)
    if limit.passes then -- its line ends there
        local own, others, last = int(limit.own), '', score
        for each, us in string.gmatch(limit.lines, ' (%d+)=(%d+)') do
            if each == own then last = max(last, us + 0) else others = others .. ' ' .. each .. '=' .. us end
        end
        limit.lines = others .. ' ' .. own .. '=' .. int(last)
    end
    call('ZADD', limit.slots_key, int(score), id)
    call('PEXPIRE', limit.slots_key, int(ceil((limit.cursor - now + GRACE_US) / 1000)))
    token_bucket.write(limit, now)
    return slot
end

if NUMBER > 1 then
    -- When the slot comes that the request has, if it has one.
    function token_bucket.due(limit)
        return limit.owner and limit.owner - limit.tolerance - limit.lead
    end

    -- May the permits be taken at the joint time of all limits, ahead of now? Not if that makes a request wait that is in the line.
    -- And not if other requests could use the permits in between, and this one may keep a slot instead (`waits`).
    function token_bucket.fits(limit, now, joint, waits)
        local mine = token_bucket.due(limit)
        if mine and mine <= now + SOON_US then return true end
        if waits and joint - limit.tat >= limit.whole then return false end
        return not limit.room or max(limit.tat, joint) + advance(limit, 0, limit.rem, limit.cost) <= limit.room
    end

    -- The earliest time, `at` or later, at which a slot may lie. A slot that the request has stays where it is while it is to come. A
    -- request that comes late, or has to wait for another limit, goes behind those that stood before it. `last`: a newcomer goes
    -- behind all.
    function token_bucket.place(limit, now, at, last)
        local mine = token_bucket.due(limit)
        if mine and mine > now and mine >= at then return mine end
        limit.last = last
        if mine then come_late(limit, now) end
        return (find(limit, at))
    end

    -- Keeps a slot at a time that `place` has given.
    function token_bucket.claim(limit, now, id, at)
        if at == token_bucket.due(limit) then return end
        limit.owner = nil
        token_bucket.reserve(limit, now, id, at, at)
    end
end

if CORRECTS then
    -- A waiting request will not come, and gives up its slot. At the end of the line the cursor moves back, for it is read from the
    -- slots; between other slots a gap is noted.
    function token_bucket.give_up(limit, now, id)
        local score = tonumber(call('ZSCORE', limit.slots_key, id))
        call('ZREM', limit.slots_key, id)
        if not score then return end
        look(limit, now, '')
        local from = score - advance(limit, 0, 0, limit.cost)
        if limit.cursor <= now or score > limit.cursor then -- no slot lies behind these gaps any more
            call('ZREMRANGEBYSCORE', limit.slots_key, '(' .. int((limit.cursor > now and limit.cursor or 0) - GAP), '(0')
        elseif from > max(now, limit.tat) then
            call('ZADD', limit.slots_key, int(score - GAP), '\0' .. int(from))
        end
    end
end
