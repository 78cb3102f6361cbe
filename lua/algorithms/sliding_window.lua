--!include counted.lua
-- Sliding window, estimated: the window is cut into sub-windows, each a counter; the one that is leaving counts in
-- proportion to what of it is still inside (with one sub-window: the well-known previous * (1 - x) + current).
--
-- Law: at most `count` in any period * (1 - 1/precision); nearly twice that can fall into one whole period, when all
--      of a sub-window's calls came at its end. For a limit that must never be exceeded: sliding_log.
--
-- extra      precision: how many sub-windows, >= 1
-- state key: string "w<us of the last write> <waiting> <offset us> <width us> <index of the newest sub-window> <its counter>
--            <the one before> ... <began us> <us of the newest permit>", counters as far back as they are not zero. The last
--            two are in letters, from a for 0, or - where they say no more than the rest: version 26778aa did not have them, and
--            takes all figures for counters. Expires when all have left, or with the line.
--            Times are this clock's plus the offset, by which it has stepped back since: time stands still meanwhile. When
--            sub-windows of another width are in force, what they held counts as taken now, or with the newest permit if
--            that lies ahead. `began`: what was granted earlier does not count here.
local sliding_window = {}

local function letters(number)
    return (string.gsub(int(number), '%d', function(figure) return string.char(figure + 97) end))
end

local function figures(text)
    return tonumber((string.gsub(text, '%a', function(letter) return string.byte(letter) - 97 end)))
end

-- counters[0] is the newest, counters[precision] the one that is leaving.
local function shift(limit, index)
    local by = index - limit.index
    if by <= 0 then return end
    local counters = {}
    for i = 0, limit.precision do
        counters[i] = i >= by and limit.counters[i - by] or 0
    end
    limit.index, limit.counters = index, counters
end

function sliding_window.advance(limit, now)
    shift(limit, floor((now + limit.offset) / limit.width))
end

function sliding_window.read(limit, now)
    limit.precision, limit.width, limit.offset = limit.extra, ceil(limit.period / limit.extra), 0
    limit.index, limit.counters, limit.began, limit.newest = floor(now / limit.width), {}, now, 0
    for i = 0, limit.precision do limit.counters[i] = 0 end
    if not match(limit.raw or '', '^w%d+ %d+ %d+ %d+ %d+') then return end
    local at, numbers = 0, {}
    for number in string.gmatch(limit.raw, '%d+') do
        at = at + 1
        numbers[at] = tonumber(number)
    end
    limit.written, limit.waiting = numbers[1], numbers[2]
    limit.offset = numbers[3] + lost(limit, now)
    local began, newest = match(limit.raw, ' ([-%a]+) ([-%a]+)$')
    limit.newest = numbers[1] + numbers[3]
    if (newest or '-') ~= '-' then
        limit.newest = figures(newest)
    elseif numbers[5] * numbers[4] > limit.newest then
        limit.newest = (numbers[5] + 1) * numbers[4] - 1 -- taken ahead
    end
    limit.began = not began and limit.newest + 1 or began == '-' and 0 or figures(began)
    if numbers[4] ~= limit.width then
        limit.changed = true
        limit.index = floor(max(changed_at(limit, now, limit.written) + limit.offset, limit.newest) / limit.width)
        for i = 6, at do limit.counters[0] = limit.counters[0] + numbers[i] end
        limit.began = max(limit.began, (numbers[5] - max(0, at - 6)) * numbers[4])
    else
        limit.index = numbers[5]
        for i = 6, min(at, limit.precision + 6) do limit.counters[i - 6] = numbers[i] end
    end
    sliding_window.advance(limit, now)
end

local function newest_used(limit)
    for i = 0, limit.precision do
        if limit.counters[i] > 0 then return i end
    end
end

-- When all that is counted now has left.
local function empty_at(limit, newest)
    return (limit.index - newest + 1 + limit.precision) * limit.width - limit.offset
end

function sliding_window.write(limit, now, ttl)
    local newest, oldest = newest_used(limit), limit.precision
    local text = format('w%d %d %d %d %d', now, limit.waiting, limit.offset, limit.width, limit.index)
    if newest then
        while limit.counters[oldest] == 0 do oldest = oldest - 1 end
        for i = 0, oldest do text = text .. ' ' .. int(limit.counters[i]) end
    end
    text = format('%s %s %s', text, limit.began > (limit.index - limit.precision) * limit.width and letters(limit.began) or '-',
        limit.newest > now + limit.offset and letters(limit.newest) or '-')
    call('SET', limit.state_key, text, 'PX', ttl(newest and empty_at(limit, newest) or limit.index * limit.width - limit.offset))
end

function sliding_window.earliest(limit, now, ahead, permits)
    local all = ahead + permits
    local windows = floor((all - 1) / limit.count) -- a line longer than the window: as often as it takes
    local room = limit.count - (all - windows * limit.count)
    for i = 0, limit.precision - 1 do room = room - limit.counters[i] end
    -- `i` is leaving; those newer are whole.
    for i = limit.precision, 0, -1 do
        local leaving = limit.counters[i]
        local since = 0
        if room < 0 then
            since = limit.width
        elseif leaving > room then
            since = limit.width - floor(room * limit.width / leaving)
        end
        if since < limit.width then
            local start = (limit.index + limit.precision - i) * limit.width - limit.offset
            return max(now, start + since) + windows * limit.width * limit.precision
        end
        if i > 0 then room = room + limit.counters[i - 1] end
    end
    return empty_at(limit, 0) + windows * limit.width * limit.precision
end

function sliding_window.take(limit, joint, permits)
    shift(limit, floor((joint + limit.offset) / limit.width))
    limit.counters[0] = limit.counters[0] + permits
    limit.newest = max(limit.newest, joint + limit.offset)
end

function sliding_window.charge(limit, now, permits)
    limit.counters[0] = limit.counters[0] + permits
end

function sliding_window.give_back(limit, now, at, permits)
    local i = limit.index - floor((at + limit.offset) / limit.width)
    if i >= 0 and i <= limit.precision and at + limit.offset >= limit.began then limit.counters[i] = max(0, limit.counters[i] - permits) end
end

function sliding_window.state(limit, now)
    local inside = 0
    for i = 0, limit.precision - 1 do inside = inside + limit.counters[i] end
    local since = min(limit.width, max(0, now + limit.offset - limit.index * limit.width))
    local leaving = ceil(limit.counters[limit.precision] * (limit.width - since) / limit.width)
    local newest = newest_used(limit)
    return max(0, limit.count - inside - leaving), newest and empty_at(limit, newest) - now or 0
end

algorithms.sliding_window = counted(sliding_window)
