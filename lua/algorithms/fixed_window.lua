-- Fixed window: so many in each window, counted anew in the next (Redis's INCR + EXPIRE pattern, made atomic).
--
-- Law: at most `count` in each window of `period` us; up to twice that in an interval as long that lies across two.
--
-- extra      0: windows are aligned to the clock, counted from 1970; 1: a window is opened by the first use after the last
-- state key: string "f<us of the last write> <us of the newest permit> <waiting> <start us> <used> <forgiven> <began us> <count>
--            <period us> <extra>"; expires with the window, or with the line. `began`: what was granted earlier
--            does not count here. Count, period and extra are the rule it was written under: when another is in force, what
--            was used is in use in the window that is open now, or in that of the newest permit if it lies ahead; what exceeds
--            its count is `forgiven` when that window ends, where an overdraft (settle) is taken from those after it.
local fixed_window = {letter = 'f'}

-- The window that is open at `at`. What was overdrawn (settle) is taken from the windows in between.
local function roll(limit, at)
    local passed = floor((at - limit.start) / limit.period)
    if passed >= 1 then
        limit.used, limit.forgiven = max(0, limit.used - limit.forgiven - passed * limit.count), 0
        limit.start = limit.extra == 0 and at - at % limit.period or limit.start + passed * limit.period
    end
    if limit.extra == 1 and limit.used == 0 then limit.start = max(limit.start, at) end -- the next use opens it
end

-- Windows until all that is used has been taken from one.
local function windows(limit, permits)
    return max(1, ceil((permits - limit.forgiven) / limit.count))
end

fixed_window.advance = roll

function fixed_window.read(limit, now)
    limit.start, limit.used = limit.extra == 1 and now or now - now % limit.period, 0
    limit.forgiven, limit.newest, limit.began = 0, 0, now
    local written, newest, waiting, start, used, forgiven, began, count, period, extra =
        match(limit.raw or '', '^f(%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+)$')
    if not written then return end
    limit.written, limit.waiting, limit.used, limit.forgiven = written + 0, waiting + 0, used + 0, forgiven + 0
    local back = lost(limit.written, now)
    limit.start, limit.newest, limit.began = start - back, newest - back, began - back
    count, period, extra = count + 0, period + 0, extra + 0
    if count ~= limit.count or period ~= limit.period or extra ~= limit.extra then
        local at, new_count, new_period, new_extra = changed_at(limit, now, limit.written), limit.count, limit.period, limit.extra
        limit.count, limit.period, limit.extra = count, period, extra
        roll(limit, at) -- by the old rule until then, by the new one from then on
        local kept = min(limit.used - limit.forgiven, limit.count)
        limit.forgiven = limit.forgiven + max(0, kept - new_count)
        limit.count, limit.period, limit.extra, limit.changed = new_count, new_period, new_extra, true
        limit.began = max(limit.began, limit.start)
        local from = max(at, limit.newest)
        if limit.extra == 0 then
            limit.start = from - from % limit.period
        elseif from >= limit.start + limit.period then
            limit.start = from
        end
        limit.used = min(limit.used, limit.forgiven + limit.count * floor(FAR_US / limit.period))
    end
    roll(limit, now)
end

function fixed_window.write(limit, now)
    local state = format('f%d %d %d %d %d %d %d %d %d %d', now, max(0, limit.newest), limit.waiting, limit.start, limit.used,
        limit.forgiven, max(0, limit.began), limit.count, limit.period, limit.extra)
    call('SET', limit.state_key, state, 'PX', kept_ms(limit, now, limit.start + windows(limit, limit.used) * limit.period))
end

function fixed_window.earliest(limit, now, ahead, permits)
    local all = limit.used + ahead + permits
    if all <= limit.count then return max(now, limit.start) end
    return limit.start + windows(limit, all - limit.count) * limit.period
end

function fixed_window.take(limit, joint, permits)
    roll(limit, joint)
    limit.used, limit.newest = limit.used + permits, max(limit.newest, joint)
end

if CORRECTS then
    function fixed_window.charge(limit, now, permits)
        limit.used = min(limit.used + permits, limit.forgiven + limit.count * floor(FAR_US / limit.period))
    end

    function fixed_window.give_back(limit, now, at, permits)
        if at < max(limit.start, limit.began) or at >= limit.start + limit.period then return end
        local back = min(permits, limit.used)
        limit.used, limit.forgiven = limit.used - back, max(0, limit.forgiven - back)
    end
end

function fixed_window.state(limit, now)
    return max(0, limit.count - limit.used), limit.used > 0 and limit.start + limit.period - now or 0
end

algorithms.fixed_window = setmetatable(fixed_window, counted)
