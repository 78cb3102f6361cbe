-- Sliding log: every call is written down with its time, one entry a call whatever its cost (rolling windows as
-- Redisson's RRateLimiter keeps them).
--
-- Law: never more than `count` in any window of `period` us, exactly. The p-th permit goes no sooner than `period` after
--      the (p - count)-th. It costs memory: some 12 to 20 bytes an entry, as many entries as calls in one period.
--
-- extra      0
-- state key: list: "l<us of the last write> <us of the newest permit> <waiting> <permits in all entries> <offset us> <began us>",
--            then for each call its time in us and its cost. Times of calls, and `began`, are this clock's plus the offset, by
--            which the clock has stepped back since: the log's own time stands still meanwhile. A list of whole numbers is the smallest thing that Redis keeps in order.
--            Expires when the last entry has passed out of the window, or with the line.
local sliding_log = {letter = 'l'}
local FIRST, CHUNK = 6, 16 -- list elements that are read with the header, and at a time behind these: three calls, and eight

-- Calls visit(time, cost) for each entry, oldest first, until that returns true.
local function walk(limit, visit)
    local chunk, from, size = limit.chunk, 1, FIRST
    while #chunk > 0 do
        for i = 1, #chunk, 2 do
            if visit(chunk[i] + 0, chunk[i + 1] + 0) then return end -- a number of a text, at half of the cost of tonumber
        end
        if #chunk < size then return end
        from, size = from + size, CHUNK
        chunk = call('LRANGE', limit.state_key, int(from), int(from + CHUNK - 1))
    end
end

function sliding_log.read(limit, now)
    limit.total, limit.newest, limit.offset, limit.gone, limit.chunk, limit.fresh = 0, 0, 0, 0, {}, true
    limit.entries, limit.clock, limit.began = {}, now, 0
    if limit.used_up then return end
    local head = limit.raw or call('LRANGE', limit.state_key, 0, FIRST) -- see read_keys.lua
    if #head == 0 then return end
    limit.fresh = false
    local written, newest, waiting, total, offset, began = match(head[1], '^l(%d+) (%d+) (%d+) (%d+) (%d+) (%d+)$')
    limit.written, limit.newest, limit.waiting = written + 0, newest + offset, waiting + 0
    limit.total, limit.offset, limit.began = total + 0, offset + lost(limit.written, now), began + 0
    limit.clock = max(now + limit.offset, limit.written + offset) -- what had passed by then may be cut off
    for i = 2, #head do limit.chunk[i - 1] = head[i] end
    -- Entries that have passed out of the window are skipped here and cut off at the next write.
    local before = now + limit.offset - limit.period
    walk(limit, function(time, cost)
        if time > before then return true end
        limit.total, limit.gone = limit.total - cost, limit.gone + 1
    end)
end

-- What another algorithm has granted passes together.
function sliding_log.advance(limit, now)
    if limit.newest + limit.period <= now then limit.total, limit.entries = 0, {} end
end

function sliding_log.write(limit, now, ttl)
    if limit.used_up then call('DEL', limit.state_key) end -- it is a string
    if limit.gone > 0 then call('LTRIM', limit.state_key, int(1 + 2 * limit.gone), -1) end
    local header = format('l%d %d %d %d %d %d', now, max(0, limit.newest - limit.offset), limit.waiting, limit.total, limit.offset,
        limit.began)
    if limit.fresh or limit.gone > 0 then
        call('LPUSH', limit.state_key, header)
    else
        call('LSET', limit.state_key, 0, header)
    end
    if #limit.entries > 0 then call('RPUSH', limit.state_key, unpack(limit.entries)) end
    call('PEXPIRE', limit.state_key, ttl(limit.total > 0 and limit.newest - limit.offset + limit.period or now))
end

function sliding_log.earliest(limit, now, ahead, permits)
    local all = ahead + permits
    local windows = floor((all - 1) / limit.count) -- a line longer than the window: as often as it takes
    local over = limit.total + all - windows * limit.count - limit.count
    local at = max(limit.clock, limit.newest)
    if over > 0 then
        local skip, left, time_of = limit.gone, 0, limit.newest
        walk(limit, function(time, cost)
            if skip > 0 then
                skip = skip - 1
                return false
            end
            left = left + cost
            time_of = time
            return left >= over
        end)
        at = max(at, time_of + limit.period)
    end
    return at - limit.offset + windows * limit.period
end

function sliding_log.take(limit, joint, permits)
    limit.newest = max(joint + limit.offset, limit.newest)
    limit.total = limit.total + permits
    table.insert(limit.entries, int(limit.newest))
    table.insert(limit.entries, int(permits))
end

if CORRECTS then
    function sliding_log.charge(limit, now, permits)
        sliding_log.take(limit, now, permits)
    end

    -- The entries of that time, of which several calls may have one each: they are found by halves, since times rise.
    function sliding_log.give_back(limit, now, at, permits)
        local time, below = at + limit.offset, limit.gone
        if time < limit.began then return end
        local above = (call('LLEN', limit.state_key) - 1) / 2
        while below < above do
            local middle = floor((below + above) / 2)
            if tonumber(call('LINDEX', limit.state_key, int(1 + 2 * middle))) < time then below = middle + 1 else above = middle end
        end
        while permits > 0 do
            local entry = call('LRANGE', limit.state_key, int(1 + 2 * below), int(2 + 2 * below))
            if tonumber(entry[1]) ~= time then return end
            local back = min(permits, tonumber(entry[2]))
            limit.total, permits = limit.total - back, permits - back
            if back > 0 then call('LSET', limit.state_key, int(2 + 2 * below), int(entry[2] - back)) end
            below = below + 1
        end
    end
end

function sliding_log.state(limit, now)
    return max(0, limit.count - limit.total), max(0, limit.total > 0 and limit.newest - limit.offset + limit.period - now or 0)
end

algorithms.sliding_log = counted(sliding_log)
