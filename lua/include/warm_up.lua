--!include line.lua
-- Token bucket that has to warm up: after a rest it starts at a third of its rate, which rises to the full rate over
-- `extra` us of use (Guava's SmoothWarmingUp, cold factor 3). A call is let in when those before it are paid for, and
-- its own price is paid by the next; nothing is saved up.
--
-- Law: at most  burst + count/period * T  permits in any interval of length T; `burst` is the dearest single call.
--
-- extra      us      time to warm up, >= 1
-- state key: string "u<us of the next permit> <stored permits> <us of the last write> <waiting>"; expires when it is cold
--            again and the line is empty. `stored` grows while nobody asks; the more, the colder, the dearer a permit.
local COLD = 3 -- times the stable interval
local warm_up = {}

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

function warm_up.read(limit, now)
    limit.stable = limit.period / limit.count
    limit.threshold = 0.5 * limit.extra / limit.stable
    limit.most = limit.threshold + 2 * limit.extra / ((1 + COLD) * limit.stable)
    limit.slope = (COLD - 1) * limit.stable / (limit.most - limit.threshold)
    limit.cool = limit.extra / limit.most
    limit.next, limit.saved = now, limit.most
    if not limit.raw then return end
    local next, stored, written, waiting = match(limit.raw, '(%d+) (%S+) (%d+) (%d+)')
    limit.saved, limit.written, limit.waiting = min(limit.most, tonumber(stored)), tonumber(written), tonumber(waiting)
    limit.next = next - lost(limit, now)
    rest(limit, now)
end

local function cold_at(limit)
    return limit.next + ceil((limit.most - limit.saved) * limit.cool)
end

function warm_up.write(limit, now, ttl)
    call('SET', limit.state_key, format('u%d %.17g %d %d', limit.next, limit.saved, now, limit.waiting),
        'PX', ttl(cold_at(limit)))
end

function warm_up.earliest(limit, now, ahead)
    return max(now, limit.next + ceil(price(limit, limit.saved, ahead)))
end

function warm_up.take(limit, joint, permits)
    rest(limit, joint)
    spend(limit, permits)
end

function warm_up.charge(limit, now, permits)
    spend(limit, permits)
end

-- Nothing comes back: what a call has cost is paid by the one after it, which may have been let in already.
function warm_up.give_back() end

function warm_up.state(limit, now)
    return limit.next <= now and limit.burst or 0, cold_at(limit) - now
end

algorithms.warm_up = counted(warm_up)
