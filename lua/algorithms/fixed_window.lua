--!include counted.lua
-- Fixed window: so many in each window, counted anew in the next (Redis's INCR + EXPIRE pattern, made atomic).
--
-- Law: at most `count` in each window of `period` us; up to twice that in an interval as long that lies across two.
--
-- extra      0: windows are aligned to the clock, counted from 1970; 1: a window is opened by the first use after the last
-- state key: string "f<start us> <used> <us of the last write> <waiting> <period us> <us of the newest permit> <forgiven>
--            <began us> <count> <extra>"; expires with the window, or with the line. `began`: what was granted earlier
--            does not count here. Period, count and extra are the rule it was written under: when another is in force, what
--            was used is in use in the window that is open now, or in that of the newest permit if it lies ahead; what exceeds
--            its count is `forgiven` when that window ends, where an overdraft (settle) is taken from those after it.
--            Version 26778aa wrote what comes before the newest permit.
local fixed_window = {}

-- The window that is open at `at`. What was overdrawn (settle) is taken from the windows in between.
local function roll(limit, at)
    local passed = floor((at - limit.start) / limit.period)
    if passed < 1 then return end
    limit.used, limit.forgiven = max(0, limit.used - limit.forgiven - passed * limit.count), 0
    if limit.extra == 0 then
        limit.start = at - at % limit.period
    else
        limit.start = limit.used > 0 and limit.start + passed * limit.period or at
    end
end

-- Windows until all that is used has been taken from one.
local function windows(limit, permits)
    return max(1, ceil((permits - limit.forgiven) / limit.count))
end

local function cap(limit)
    limit.used = min(limit.used, limit.forgiven + limit.count * max(1, floor(FAR_US / limit.period)))
end

-- Another rule is in force from then on.
local function change(limit, at, count, period, extra)
    limit.changed = true
    local kept = min(limit.used - limit.forgiven, limit.count)
    limit.forgiven = limit.forgiven + max(0, kept - count)
    limit.count, limit.period, limit.extra = count, period, extra
    limit.began = max(limit.began, limit.start)
    local from = max(at, limit.newest)
    if extra == 0 then
        limit.start = from - from % period
    elseif from >= limit.start + period then
        limit.start = from
    end
    cap(limit)
end

function fixed_window.advance(limit, now)
    roll(limit, now)
    if limit.extra == 1 and limit.used == 0 then limit.start = max(limit.start, now) end
end

function fixed_window.read(limit, now)
    limit.start, limit.used = limit.extra == 1 and now or now - now % limit.period, 0
    limit.forgiven, limit.newest, limit.began = 0, 0, now
    local start, used, written, waiting, period, more = match(limit.raw or '', '^f(%d+) (%d+) (%d+) (%d+) (%d+)(.*)')
    if not start then return end
    local newest, forgiven, began, count, extra = match(more, '^ (%d+) (%d+) (%d+) (%d+) (%d+)$')
    if not newest then
        newest = start - written > 0 and start + period - 1 or tonumber(written)
        forgiven, began, count, extra = 0, newest + 1, limit.count, limit.extra
    end
    limit.used, limit.written, limit.waiting = tonumber(used), tonumber(written), tonumber(waiting)
    local back = lost(limit, now)
    limit.start, limit.newest, limit.began, limit.forgiven = start - back, newest - back, began - back, tonumber(forgiven)
    local n, each, align = limit.count, limit.period, limit.extra
    limit.count, limit.period, limit.extra = tonumber(count), tonumber(period), tonumber(extra)
    if limit.count ~= n or limit.period ~= each or limit.extra ~= align then
        local at = changed_at(limit, now, limit.written)
        roll(limit, at)
        change(limit, at, n, each, align)
    end
    fixed_window.advance(limit, now)
end

function fixed_window.write(limit, now, ttl)
    local state = format('f%d %d %d %d %d %d %d %d %d %d', limit.start, limit.used, now, limit.waiting, limit.period,
        max(0, limit.newest), limit.forgiven, max(0, limit.began), limit.count, limit.extra)
    call('SET', limit.state_key, state, 'PX', ttl(limit.start + windows(limit, limit.used) * limit.period))
end

function fixed_window.earliest(limit, now, ahead, permits)
    local all = limit.used + ahead + permits
    if all <= limit.count then return max(now, limit.start) end
    return limit.start + windows(limit, all - limit.count) * limit.period
end

function fixed_window.take(limit, joint, permits)
    roll(limit, joint)
    if limit.extra == 1 and limit.used == 0 then limit.start = max(limit.start, joint) end -- opened by this use
    limit.used, limit.newest = limit.used + permits, max(limit.newest, joint)
end

function fixed_window.charge(limit, now, permits)
    limit.used = limit.used + permits
    cap(limit)
end

function fixed_window.give_back(limit, now, at, permits)
    if at < max(limit.start, limit.began) or at >= limit.start + limit.period then return end
    local back = min(permits, limit.used)
    limit.used, limit.forgiven = limit.used - back, max(0, limit.forgiven - back)
end

function fixed_window.state(limit, now)
    return max(0, limit.count - limit.used), limit.used > 0 and limit.start + limit.period - now or 0
end

algorithms.fixed_window = counted(fixed_window)
