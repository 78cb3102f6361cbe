-- The line of the algorithms that count permits: which requests wait, and when each of them may go.
--
-- An algorithm gives    read(limit, now)                        the bucket as it is, into `limit`
--                       advance(limit, now)                     moves it on to now
--                       earliest(limit, now, ahead, permits)    when so many permits more could be taken, after `ahead` others
--                       take(limit, joint, permits)             takes them
--                       write(limit, now, ttl)                  keeps it; ttl(us at which it is full again) is in ms
--                       charge, give_back, state                see token_bucket.lua
--                       one_by_one                              true: requests go one after the other, never several at once
--                       unforeseen                              true: when others go is not known
-- and `counted` makes of it what the scripts ask for, see lua/README.md.
--
-- In the limit: `began` us: what was granted earlier was not granted by this algorithm, and cannot be given back; `written` us, of
-- the last write; `newest` us, of the newest permit; `waiting` permits that the requests in the line ask for. The last three are
-- part of the state.
-- slots key: sorted set, id of a waiting request -> us of its slot. Expires a second after the last slot.

local ROUNDS = 8

local function counted(algorithm)
    local earliest = algorithm.earliest

    -- The turn of a request that joins the line. Requests that wait for other limits, too, have slots later than this limit alone
    -- would give them. Others may go between them: as many before each as there are permits by then, and no more near it
    -- than a period allows. In a line for places, only requests that ask for other limits, too: slots there are estimates.
    local function behind_all(limit, now, at)
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

    -- Keeps the bucket for as long as it says anything: until `full`, and until the line is empty, by a clock that may step back.
    local function write(limit, now)
        local line = limit.waiting > 0 and limit.last and limit.last + GRACE_US or now
        algorithm.write(limit, now, function(full)
            return int(ceil((max(full, line) - now + STEP_US) / 1000))
        end)
    end

    -- One request less in the line; the last one clears it.
    local function take_out(limit, id)
        limit.waiting = max(0, limit.waiting - limit.cost)
        if limit.waiting > 0 then call('ZREM', limit.slots_key, id) else call('DEL', limit.slots_key) end
    end

    function algorithm.check(limit, now, id)
        limit.waiting, limit.written, limit.id = 0, now, id
        if limit.used_up then
            algorithm.read(limit, limit.used_up)
            algorithm.take(limit, limit.used_up, limit.burst)
            algorithm.advance(limit, now)
            limit.began = limit.used_up + 1
        else
            algorithm.read(limit, now)
        end
        if lost(limit.written, now) > 0 or limit.written < max(limit.since, limit.resumed) then
            limit.waiting, limit.changed = 0, true -- the slots mean nothing now: a request that comes gets another
        end
        local ahead = limit.waiting > 0 and read_line(limit, now, id) or 0
        limit.grant = ahead > 0 and behind_all(limit, now, now) or max(now, earliest(limit, now, 0, limit.cost))
        limit.behind = ahead > 0 and limit.grant > now
    end

    function algorithm.commit(limit, now, id, joint)
        algorithm.take(limit, joint, limit.cost)
        if limit.owner then take_out(limit, id) elseif limit.overdue then take_out(limit, limit.overdue) end
        write(limit, now)
    end

    -- The earliest time, `at` or later, at which a slot may lie; see token_bucket.lua.
    function algorithm.place(limit, now, at, last)
        local owner = limit.owner
        if owner and owner > now and owner >= at then return owner end
        if owner then -- came late, or has to wait for another limit: before those who come after it
            local ahead = floor(limit.waiting * call('ZRANK', limit.slots_key, limit.id) / call('ZCARD', limit.slots_key))
            return max(at, earliest(limit, now, ahead, limit.cost))
        end
        if last then return max(at, earliest(limit, now, limit.waiting, limit.cost), limit.last or 0) end
        return behind_all(limit, now, at)
    end

    function algorithm.claim(limit, now, id, at)
        if at == limit.owner then return end
        if limit.waiting == 0 then call('DEL', limit.slots_key) end
        if not limit.owner then limit.waiting = limit.waiting + limit.cost end
        limit.last = max(limit.last or 0, at)
        call('ZADD', limit.slots_key, int(at), id)
        call('PEXPIRE', limit.slots_key, int(ceil((limit.last - now + GRACE_US) / 1000)))
        write(limit, now)
    end

    function algorithm.reserve(limit, now, id, joint, latest)
        local owner = limit.owner
        if owner and owner > now then return max(owner, joint) end -- came early: its slot stands
        local slot = algorithm.place(limit, now, joint)
        if id ~= '' and slot <= latest then algorithm.claim(limit, now, id, slot) end
        return slot
    end

    if NUMBER > 1 then
        function algorithm.due(limit)
            return limit.owner
        end

        function algorithm.fits(limit, now, joint, waits)
            if limit.owner and limit.owner <= now + SOON_US then return true end
            if joint > limit.grant and waits then return false end
            return limit.waiting == 0 or not limit.first or limit.overdue or joint <= limit.first
        end
    end

    function algorithm.note_change(limit, now)
        if limit.changed then write(limit, now) end
    end

    if CORRECTS then
        function algorithm.give_up(limit, now, id)
            algorithm.check(limit, now, '')
            take_out(limit, id)
            write(limit, now)
        end

        local charge, give_back = algorithm.charge, algorithm.give_back

        function algorithm.charge(limit, now, permits)
            charge(limit, now, permits)
            write(limit, now)
        end

        function algorithm.give_back(limit, now, at, permits)
            give_back(limit, now, at, permits)
            write(limit, now)
        end
    end

    return algorithm
end
