--!include line.lua
-- Fixed window: so many in each window, counted anew in the next (Redis's INCR + EXPIRE pattern, made atomic).
--
-- Law: at most `count` in each window of `period` us; up to twice that in an interval as long that lies across two.
--
-- extra      0: windows are aligned to the clock, counted from 1970; 1: a window is opened by the first use after the last
-- state key: string "f<start us> <used> <us of the last write> <waiting> <period us>"; expires with the window, or with the
--            line. When another period is in force, the window that is open becomes as long.
local fixed_window = {}

-- The window that is open at `at`. What was overdrawn (settle) is taken from the windows in between.
local function roll(limit, at)
    local passed = floor((at - limit.start) / limit.period)
    if passed < 1 then return end
    limit.used = max(0, limit.used - passed * limit.count)
    if limit.extra == 0 then
        limit.start = at - at % limit.period
    else
        limit.start = limit.used > 0 and limit.start + passed * limit.period or at
    end
end

function fixed_window.read(limit, now)
    limit.start, limit.used = limit.extra == 1 and now or now - now % limit.period, 0
    if not limit.raw then return end
    local start, used, written, waiting, period = match(limit.raw, '(%d+) (%d+) (%d+) (%d+) (%d+)')
    limit.used, limit.written, limit.waiting = tonumber(used), tonumber(written), tonumber(waiting)
    limit.start = start - lost(limit, now)
    local in_force = limit.period
    limit.period = tonumber(period)
    roll(limit, now)
    if limit.period ~= in_force then
        limit.period = in_force
        if limit.extra == 0 then limit.start = now - now % in_force end
        roll(limit, now)
    end
    if limit.extra == 1 and limit.used == 0 then limit.start = max(limit.start, now) end
end

function fixed_window.write(limit, now, ttl)
    local windows = ceil(max(1, limit.used) / limit.count)
    call('SET', limit.state_key, format('f%d %d %d %d %d', limit.start, limit.used, now, limit.waiting, limit.period),
        'PX', ttl(limit.start + windows * limit.period))
end

function fixed_window.earliest(limit, now, ahead, permits)
    local over = limit.used + ahead + permits - limit.count
    if over <= 0 then return max(now, limit.start) end
    return limit.start + ceil(over / limit.count) * limit.period
end

function fixed_window.take(limit, joint, permits)
    roll(limit, joint)
    if limit.extra == 1 and limit.used == 0 then limit.start = max(limit.start, joint) end -- opened by this use
    limit.used = limit.used + permits
end

function fixed_window.charge(limit, now, permits)
    limit.used = limit.used + permits
end

function fixed_window.give_back(limit, now, at, permits)
    if at >= limit.start and at < limit.start + limit.period then limit.used = max(0, limit.used - permits) end
end

function fixed_window.state(limit, now)
    return max(0, limit.count - limit.used), limit.used > 0 and limit.start + limit.period - now or 0
end

algorithms.fixed_window = counted(fixed_window)
