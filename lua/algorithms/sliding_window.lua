-- Sliding window, estimated: the window is cut into sub-windows, each a counter; the oldest is passing out of the window, and counts
-- in proportion to the part that is still inside (with one sub-window: the well-known previous * (1 - x) + current).
--
-- Law: at most `count` in any period * (1 - 1/sub_windows); nearly twice that can fall into one whole period, when all
--      of a sub-window's calls came at its end. For a limit that must never be exceeded: sliding_log.
--
-- extra      sub_windows: how many sub-windows, >= 1
-- state key: string "w<us of the last write> <us of the newest permit> <waiting> <offset us> <began us> <width us> <index of the
--            newest sub-window> <its counter> <the one before> ...", counters as far back as they are not zero. Expires when
--            all have passed, or with the line.
--            Sub-windows and `began` are of this clock's time plus the offset, by which it has stepped back since. When
--            sub-windows of another width are in force, what they held counts as taken now, or with the newest permit if
--            that lies ahead. `began`: what was granted earlier does not count here.
local sliding_window = {letter = 'w'}

-- counters[0] is the newest, counters[sub_windows] the one that is passing out of the window; a missing one is as good as 0.
local function shift(limit, index)
    local by = index - limit.index
    if by <= 0 then return end
    local counters = {}
    for i, used in next, limit.counters do
        if i + by <= limit.sub_windows then counters[i + by] = used end
    end
    limit.index, limit.counters = index, counters
end

function sliding_window.advance(limit, now)
    shift(limit, floor((now + limit.offset) / limit.width))
end

function sliding_window.read(limit, now)
    limit.sub_windows, limit.width, limit.offset, limit.counters = limit.extra, ceil(limit.period / limit.extra), 0, {}
    limit.began, limit.newest = now, 0
    local written, newest, waiting, offset, began, width, index, counters =
        match(limit.raw or '', '^w(%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+)([ %d]*)$')
    if not written then
        limit.index = floor(now / limit.width)
        return
    end
    limit.written, limit.newest, limit.waiting = written + 0, newest + offset, waiting + 0
    limit.offset, limit.began = offset + lost(limit.written, now), began + 0
    width, index = width + 0, index + 0
    local i, all, most = 0, 0, width == limit.width and limit.sub_windows or math.huge
    for used in string.gmatch(counters, '%d+') do
        if i <= most then limit.counters[i], all = used + 0, all + used end
        i = i + 1
    end
    if width == limit.width then
        limit.index = index
    else
        limit.changed = true
        limit.index = floor(max(changed_at(limit, now, limit.written) + limit.offset, limit.newest) / limit.width)
        limit.counters = {[0] = all}
        limit.began = max(limit.began, (index - max(0, i - 1)) * width)
    end
    sliding_window.advance(limit, now)
end

local function newest_used(limit)
    for i = 0, limit.sub_windows do
        if (limit.counters[i] or 0) > 0 then return i end
    end
end

-- When all that is counted now has passed.
local function empty_at(limit, newest)
    return (limit.index - newest + 1 + limit.sub_windows) * limit.width - limit.offset
end

function sliding_window.write(limit, now)
    local newest, oldest = newest_used(limit), limit.sub_windows
    local text = format('w%d %d %d %d %d %d %d', now, max(0, limit.newest - limit.offset), limit.waiting, limit.offset,
        limit.began, limit.width, limit.index)
    if newest then
        while (limit.counters[oldest] or 0) == 0 do oldest = oldest - 1 end
        for i = 0, oldest do text = text .. ' ' .. int(limit.counters[i] or 0) end
    end
    call('SET', limit.state_key, text, 'PX', kept_ms(limit, now, newest and empty_at(limit, newest) or limit.index * limit.width - limit.offset))
end

function sliding_window.earliest(limit, now, ahead, permits)
    local all = ahead + permits
    local windows = floor((all - 1) / limit.count) -- a line longer than the window: as often as it takes
    local room = limit.count - (all - windows * limit.count)
    for i = 0, limit.sub_windows - 1 do room = room - (limit.counters[i] or 0) end
    -- `i` is passing; those newer are whole.
    for i = limit.sub_windows, 0, -1 do
        local passing = limit.counters[i] or 0
        local since = 0
        if room < 0 then
            since = limit.width
        elseif passing > room then
            since = limit.width - floor(room * limit.width / passing)
        end
        if since < limit.width then
            local start = (limit.index + limit.sub_windows - i) * limit.width - limit.offset
            return max(now, start + since) + windows * limit.width * limit.sub_windows
        end
        if i > 0 then room = room + (limit.counters[i - 1] or 0) end
    end
    return empty_at(limit, 0) + windows * limit.width * limit.sub_windows
end

function sliding_window.take(limit, joint, permits)
    shift(limit, floor((joint + limit.offset) / limit.width))
    limit.counters[0] = (limit.counters[0] or 0) + permits
    limit.newest = max(limit.newest, joint + limit.offset)
end

if CORRECTS then
    function sliding_window.charge(limit, now, permits)
        limit.counters[0] = (limit.counters[0] or 0) + permits
    end

    function sliding_window.give_back(limit, now, at, permits)
        local i = limit.index - floor((at + limit.offset) / limit.width)
        if i < 0 or i > limit.sub_windows or at + limit.offset < limit.began then return end
        limit.counters[i] = max(0, (limit.counters[i] or 0) - permits)
    end
end

function sliding_window.state(limit, now)
    local inside = 0
    for i = 0, limit.sub_windows - 1 do inside = inside + (limit.counters[i] or 0) end
    local since = min(limit.width, max(0, now + limit.offset - limit.index * limit.width))
    local passing = ceil((limit.counters[limit.sub_windows] or 0) * (limit.width - since) / limit.width)
    local newest = newest_used(limit)
    return max(0, limit.count - inside - passing), newest and empty_at(limit, newest) - now or 0
end

algorithms.sliding_window = setmetatable(sliding_window, counted)
