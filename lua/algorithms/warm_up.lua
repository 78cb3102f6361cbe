-- Token bucket that has to warm up: after a rest it starts at a third of its rate, which rises to the full rate over
-- `extra` us of use (Guava's SmoothWarmingUp, cold factor 3). A request goes when those before it are paid for, and its
-- own price is paid by the next; nothing is saved up.
--
-- Law: at most  burst + count/period * T  permits in any interval of length T; `burst` is the dearest single call.
--
-- extra      us      time to warm up, >= 1; below zero: the same, and it starts at a tenth of its rate (report_throttle.lua)
-- state key: string "u<us of the last write> <us of the newest permit> <waiting> <us of the next permit> <stored permits>
--            <count> <period us> <extra>"; expires when it is cold again and the line is empty. `stored` grows while no request
--            comes; the more, the colder, the dearer a permit. The last three are the rule it was written under: when another
--            is in force, it is as cold as before in proportion, and what is still to be paid is so many permits.
local COLD, COLDEST = 3, 10 -- times the stable interval
local warm_up = {letter = 'u', one_by_one = true}

local function rest(limit, at)
    if at <= limit.next then return end
    limit.saved = min(limit.most, limit.saved + (at - limit.next) / limit.cool)
    limit.next = at
end

-- What the next `permits` cost, in us: those stored above the threshold are dearer, along a straight line.
local function price(limit, stored, permits)
    local above = stored - limit.threshold
    local time = 0
    if above > 0 then
        local n = min(above, permits)
        time = n * ((limit.stable + above * limit.slope) + (limit.stable + (above - n) * limit.slope)) / 2
        permits = permits - n
    end
    return time + limit.stable * permits
end

local function spend(limit, permits)
    limit.next = limit.next + ceil(price(limit, limit.saved, permits)) -- a sum of both would lose the fraction
    limit.saved = limit.saved - min(limit.saved, permits)
end

-- The rule in numbers: us for a permit when warm, and how it is dearer the more are stored.
local function reckon(limit, count, period, extra)
    local cold = extra < 0 and COLDEST or COLD
    extra = math.abs(extra)
    limit.stable = period / count
    limit.threshold = 0.5 * extra / limit.stable
    limit.most = limit.threshold + 2 * extra / ((1 + cold) * limit.stable)
    limit.slope = (cold - 1) * limit.stable / (limit.most - limit.threshold)
    limit.cool = extra / limit.most
end

warm_up.advance = rest

function warm_up.read(limit, now)
    reckon(limit, limit.count, limit.period, limit.extra)
    limit.next, limit.saved, limit.newest = now, limit.most, 0
    local written, newest, waiting, next, stored, count, period, extra =
        match(limit.raw or '', '^u(%d+) (%d+) (%d+) (%d+) (%S+) (%d+) (%d+) (%-?%d+)$')
    if not written then return end
    limit.written, limit.waiting = written + 0, waiting + 0
    local back = lost(limit.written, now)
    limit.next, limit.newest, limit.saved = next - back, newest - back, stored + 0
    count, period, extra = count + 0, period + 0, extra + 0
    if count ~= limit.count or period ~= limit.period or extra ~= limit.extra then
        local at = changed_at(limit, now, limit.written)
        limit.changed = true
        reckon(limit, count, period, extra)
        rest(limit, at)
        local stable, most = limit.stable, limit.most
        reckon(limit, limit.count, limit.period, limit.extra)
        limit.saved = limit.saved * limit.most / most
        if limit.next > at then
            limit.next = moved(limit, at, limit.next, limit.stable / stable, limit.burst * limit.stable)
        end
    end
    rest(limit, now)
end

local function cold_at(limit)
    return limit.next + ceil((limit.most - limit.saved) * limit.cool)
end

function warm_up.write(limit, now)
    call('SET', limit.state_key, format('u%d %d %d %d %.17g %d %d %d', now, max(0, limit.newest), limit.waiting, limit.next,
        limit.saved, limit.count, limit.period, limit.extra), 'PX', kept_ms(limit, now, cold_at(limit)))
end

function warm_up.earliest(limit, now, ahead)
    return max(now, limit.next + ceil(price(limit, limit.saved, ahead)))
end

function warm_up.take(limit, joint, permits)
    rest(limit, joint)
    spend(limit, permits)
    limit.newest = max(limit.newest, joint)
end

if CORRECTS then
    function warm_up.charge(limit, now, permits)
        spend(limit, permits)
        limit.next = min(limit.next, now + FAR_US)
    end

    -- Nothing comes back: what a call has cost is paid by the one after it, which may have gone already.
    function warm_up.give_back() end
end

function warm_up.state(limit, now)
    return limit.next <= now and limit.burst or 0, cold_at(limit) - now
end

algorithms.warm_up = setmetatable(warm_up, counted)
