-- The line of the algorithms that count permits: who waits, and who comes when.
--
-- An algorithm gives    read(limit, now)                        the bucket as it is, into `limit`
--                       earliest(limit, now, ahead, permits)    when so many more could go, after `ahead` others
--                       take(limit, joint, permits)             takes them
--                       write(limit, now, ttl)                  keeps it; ttl(us at which it is full again) is in ms
--                       charge, give_back, state                see token_bucket.lua
-- and `counted` makes of it what the scripts ask for.
--
-- In the limit: `written` us, `waiting` permits asked for by those in the line. Both are part of the state.
-- slots key: sorted set, id of a waiting request -> us of its slot. Expires a second after the last slot.

-- For `read`: the us by which the clock has stepped back since the last write; 0 where it is waited for.
local function lost(limit, now)
    local back = limit.written - now
    return back > STEP_US and back or 0
end

local function counted(algorithm)
    local earliest = algorithm.earliest

    local function read_line(limit, now, id)
        limit.last = tonumber(call('ZRANGE', limit.slots_key, -1, -1, 'WITHSCORES')[2])
        if not limit.last or limit.last + GRACE_US < now then
            limit.waiting, limit.last = 0, nil -- all have come, were forgotten, or are overdue
            return 0
        end
        if id ~= '' then limit.owner = tonumber(call('ZSCORE', limit.slots_key, id)) end
        if limit.owner then return 0 end
        local first = call('ZRANGE', limit.slots_key, 0, 0, 'WITHSCORES')
        local slot = tonumber(first[2])
        if slot + GRACE_US < now then
            limit.overdue = first[1]
            return 0
        end
        -- A newcomer may go ahead of a line if that makes nobody in it wait: it fills a gap that was given back.
        if slot > now and earliest(limit, now, 0, limit.cost) <= now then
            local usual = ceil(limit.waiting / call('ZCARD', limit.slots_key))
            if earliest(limit, now, limit.cost, usual) <= slot then return 0 end
        end
        return limit.waiting
    end

    -- Keeps the bucket for as long as it says anything: until `full`, and until the line is empty, by a clock that may step back.
    local function write(limit, now)
        local line = limit.waiting > 0 and limit.last and limit.last + GRACE_US or now
        algorithm.write(limit, now, function(full)
            return int(ceil((max(full, line) - now + STEP_US) / 1000))
        end)
    end

    -- One less in the line; the last one clears it.
    local function leave(limit, id)
        limit.waiting = max(0, limit.waiting - limit.cost)
        if limit.waiting > 0 then call('ZREM', limit.slots_key, id) else call('DEL', limit.slots_key) end
    end

    function algorithm.check(limit, now, id)
        limit.waiting, limit.written = 0, now
        algorithm.read(limit, now)
        if limit.in_use and limit.in_use > 0 then algorithm.take(limit, now, limit.in_use) end
        if lost(limit, now) > 0 or limit.written < max(limit.since, limit.resumed) then
            limit.waiting, limit.changed = 0, true -- the slots mean nothing now: who comes gets another
        end
        local ahead = limit.waiting > 0 and read_line(limit, now, id) or 0
        limit.grant = max(now, earliest(limit, now, ahead, limit.cost))
        limit.behind = ahead > 0 and limit.grant > now
    end

    function algorithm.commit(limit, now, id, joint)
        algorithm.take(limit, joint, limit.cost)
        if limit.owner then leave(limit, id) elseif limit.overdue then leave(limit, limit.overdue) end
        write(limit, now)
    end

    function algorithm.reserve(limit, now, id, joint, latest)
        local owner = limit.owner
        if owner and owner > now then return max(owner, joint) end -- came early: its slot stands
        local ahead = limit.waiting
        if owner then -- came late: before those who come after it
            ahead = floor(ahead * call('ZRANK', limit.slots_key, id) / call('ZCARD', limit.slots_key))
        end
        local slot = max(joint, earliest(limit, now, ahead, limit.cost))
        if id ~= '' and slot <= latest then
            if limit.waiting == 0 then call('DEL', limit.slots_key) end
            if not owner then limit.waiting = limit.waiting + limit.cost end
            limit.last = max(limit.last or 0, slot)
            call('ZADD', limit.slots_key, int(slot), id)
            call('PEXPIRE', limit.slots_key, int(ceil((limit.last - now + GRACE_US) / 1000)))
            write(limit, now)
        end
        return slot
    end

    function algorithm.refuse(limit, now)
        if limit.changed then write(limit, now) end
    end

    function algorithm.leave(limit, now, id)
        algorithm.check(limit, now, '')
        leave(limit, id)
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

    return algorithm
end
