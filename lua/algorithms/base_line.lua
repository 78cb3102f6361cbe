-- The line of the algorithms that count permits: which requests wait, and when each of them may go.
--
-- slots key: sorted set, id of a waiting request -> us of its slot. Expires a second after the last slot.
--
-- Uses counted, see algorithm_base.lua; look, see load_line_functions.lua. Gives of the algorithms join, take_out, reserve, due, fits, place, claim, give_up.
local ROUNDS = 8

-- The turn of a request that joins the line. Requests that wait for other limits, too, have slots later than this limit alone
-- would give them. Others may go between them: as many before each as there are permits by then, and no more near it
-- than a period allows. In a line for places, only requests that ask for other limits, too: slots there are estimates.
local function behind_all(limit, now, at)
    local algorithm = limit.algorithm
    local earliest = algorithm.earliest
    local slot = earliest(limit, now, limit.waiting, limit.cost)
    if not limit.last or limit.last <= slot or algorithm.unforeseen and not limit.among then return max(at, slot) end
    local last = max(at, limit.last)
    local each = ceil(limit.waiting / call('ZCARD', limit.slots_key))
    local span, most = limit.period, max(1, floor(limit.count / each))
    if algorithm.one_by_one then
        span, most = ceil(limit.cost * limit.period / limit.count), 1
    elseif algorithm.unforeseen then -- only how many come before it
        span, most = 0, limit.waiting
    end
    for _ = 1, ROUNDS do
        local before = call('ZCOUNT', limit.slots_key, '-inf', int(at))
        local soonest = earliest(limit, now, before * each, limit.cost)
        if soonest <= at and before >= most then
            soonest = call('ZRANGE', limit.slots_key, int(before - most), int(before - most), 'WITHSCORES')[2] + span
        end
        if soonest <= at then
            local after = int(before + most - 1)
            soonest = tonumber(call('ZRANGE', limit.slots_key, after, after, 'WITHSCORES')[2])
            if not soonest or soonest >= at + span then return min(at, last) end
        end
        at = soonest
    end
    return last
end

local function read_line(limit, now, id)
    limit.last = tonumber(call('ZRANGE', limit.slots_key, -1, -1, 'WITHSCORES')[2])
    if not limit.last or limit.last + GRACE_US < now then
        limit.waiting, limit.last = 0, nil -- all requests have come, were forgotten, or are overdue
        return 0
    end
    if id ~= '' then limit.owner = tonumber(call('ZSCORE', limit.slots_key, id)) end
    if limit.owner then return 0 end
    local first = call('ZRANGE', limit.slots_key, 0, 0, 'WITHSCORES')
    local slot = tonumber(first[2])
    limit.first = slot
    if slot + GRACE_US < now then
        limit.overdue = first[1]
        return 0
    end
    -- A newcomer may go ahead of the requests whose turn is to come if that makes none of them wait: they may wait for other
    -- limits, or a permit was given back.
    local earliest = limit.algorithm.earliest
    local usual, due = ceil(limit.waiting / call('ZCARD', limit.slots_key)), 0
    if slot <= now then
        due = call('ZCOUNT', limit.slots_key, '-inf', int(now))
        slot = tonumber(call('ZRANGE', limit.slots_key, int(due), int(due), 'WITHSCORES')[2])
    end
    local before = due * usual
    if slot and earliest(limit, now, before, limit.cost) <= now
        and earliest(limit, now, before + limit.cost, usual) <= slot then return 0 end
    return limit.waiting
end

-- Pass one, where requests wait: sets limit.grant and limit.behind, whether others come first.
function counted.join(limit, now, id)
    if read_line(limit, now, id) == 0 then return end
    limit.grant = behind_all(limit, now, now)
    limit.behind = limit.grant > now
end

-- One request less in the line; the last one clears it.
function counted.take_out(limit, id)
    limit.waiting = max(0, limit.waiting - limit.cost)
    if limit.waiting > 0 then call('ZREM', limit.slots_key, id) else call('DEL', limit.slots_key) end
end

-- The earliest time, `at` or later, at which a slot may lie; see token_bucket.lua.
function counted.place(limit, now, at, last)
    local owner = limit.owner
    if owner and owner > now and owner >= at then return owner end
    if owner then -- came late, or has to wait for another limit: before all later requests
        local ahead = floor(limit.waiting * call('ZRANK', limit.slots_key, limit.id) / call('ZCARD', limit.slots_key))
        return max(at, limit.algorithm.earliest(limit, now, ahead, limit.cost))
    end
    if last then return max(at, limit.algorithm.earliest(limit, now, limit.waiting, limit.cost), limit.last or 0) end
    return behind_all(limit, now, at)
end

function counted.claim(limit, now, id, at)
    if at == limit.owner then return end
    if limit.waiting == 0 then call('DEL', limit.slots_key) end
    if not limit.owner then limit.waiting = limit.waiting + limit.cost end
    limit.last = max(limit.last or 0, at)
    call('ZADD', limit.slots_key, int(at), id)
    call('PEXPIRE', limit.slots_key, int(ceil((limit.last - now + GRACE_US) / 1000)))
    limit.changed = false
    limit.algorithm.write(limit, now)
end

function counted.reserve(limit, now, id, joint, latest)
    local owner = limit.owner
    if owner and owner > now then return max(owner, joint) end -- came early: its slot stands
    local slot = counted.place(limit, now, joint)
    if id ~= '' and slot <= latest then limit.algorithm.claim(limit, now, id, slot) end
    return slot
end

if NUMBER > 1 then
    function counted.due(limit)
        return limit.owner
    end

    function counted.fits(limit, now, joint, waits)
        if limit.owner and limit.owner <= now + SOON_US then return true end
        if joint > limit.grant and waits then return false end
        return limit.waiting == 0 or not limit.first or limit.overdue or joint <= limit.first
    end
end

if CORRECTS then
    -- A waiting request will not come, and gives up its slot.
    function counted.give_up(limit, now, id)
        look(limit, now, '')
        counted.take_out(limit, id)
        limit.algorithm.write(limit, now)
    end
end
