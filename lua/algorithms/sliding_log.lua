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
local HEAD, CHUNK = 7, 16 -- list elements that are read at first, the header and three calls, and at a time behind these

-- Adds up the entries behind `skip` others, oldest first, up to the first that is later than `before`, or until they cost `enough`.
-- Returns how many there are, what they cost, and the time of the last of them.
local function add_up(limit, skip, before, enough)
    local chunk, first, read, number, cost, time = limit.head, 2, HEAD, 0, 0, 0
    while true do
        for i = first, #chunk, 2 do
            if skip > 0 then
                skip = skip - 1
            else
                if cost >= enough or chunk[i] - before > 0 then return number, cost, time end
                number, cost, time = number + 1, cost + chunk[i + 1], chunk[i]
            end
        end
        if #chunk < (first == 2 and HEAD or CHUNK) then return number, cost, time end
        chunk, first = call('LRANGE', limit.state_key, int(read), int(read + CHUNK - 1)), 1
        read = read + CHUNK
    end
end

function sliding_log.read(limit, now)
    limit.total, limit.newest, limit.offset, limit.gone, limit.began, limit.clock = 0, 0, 0, 0, 0, now
    limit.entries = false
    limit.head = limit.used_up and {} or limit.raw or call('LRANGE', limit.state_key, '0', int(HEAD - 1)) -- see fetch_state_and_config.lua
    if not limit.head[1] then return end
    local written, newest, waiting, total, offset, began = match(limit.head[1], '^l(%d+) (%d+) (%d+) (%d+) (%d+) (%d+)$')
    limit.written, limit.newest, limit.waiting, limit.began = written + 0, newest + offset, waiting + 0, began + 0
    limit.offset = offset + lost(limit.written, now)
    limit.clock = max(now + limit.offset, limit.written + offset) -- what had passed by then may be cut off
    -- Entries that have passed out of the window are left out here, and cut off at the next write.
    local passed
    limit.gone, passed = add_up(limit, 0, now + limit.offset - limit.period, math.huge)
    limit.total = total - passed
end

-- What another algorithm has granted passes together.
function sliding_log.advance(limit, now)
    if limit.newest + limit.period <= now then limit.total, limit.entries = 0, false end
end

function sliding_log.write(limit, now)
    local key, entries = limit.state_key, limit.entries
    local header = format('l%d %d %d %d %d %d', now, max(0, limit.newest - limit.offset), limit.waiting, limit.total, limit.offset,
        limit.began)
    if limit.used_up then call('DEL', key) end -- it is a string
    if limit.gone > 0 then call('LTRIM', key, int(2 * limit.gone), '-1') end -- the cost of the last of them is overwritten
    if limit.head[1] then call('LSET', key, '0', header) else call('RPUSH', key, header) end
    if entries then call('RPUSH', key, unpack(entries)) end
    limit.used_up, limit.gone, limit.head, limit.entries = false, 0, {header}, false -- a script may write it once more
    call('PEXPIRE', key, kept_ms(limit, now, limit.total > 0 and limit.newest - limit.offset + limit.period or now))
end

function sliding_log.earliest(limit, now, ahead, permits)
    local all = ahead + permits
    local windows = floor((all - 1) / limit.count) -- a line longer than the window: as often as it takes
    local over = limit.total + all - windows * limit.count - limit.count
    local at = max(limit.clock, limit.newest)
    if over > 0 then
        local number, _, time = add_up(limit, limit.gone, math.huge, over)
        at = max(at, (number > 0 and time or limit.newest) + limit.period)
    end
    return at - limit.offset + windows * limit.period
end

function sliding_log.take(limit, joint, permits)
    limit.newest = max(joint + limit.offset, limit.newest)
    limit.total = limit.total + permits
    local entries = limit.entries or {}
    entries[#entries + 1], entries[#entries + 2] = int(limit.newest), int(permits)
    limit.entries = entries
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
            call('LSET', limit.state_key, int(2 + 2 * below), int(entry[2] - back))
            below = below + 1
        end
    end
end

function sliding_log.state(limit, now)
    return max(0, limit.count - limit.total), max(0, limit.total > 0 and limit.newest - limit.offset + limit.period - now or 0)
end

algorithms.sliding_log = setmetatable(sliding_log, counted)
