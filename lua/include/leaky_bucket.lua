--!include token_bucket.lua
-- Leaky bucket, as a queue: calls leave one by one, evenly spaced, and at most `capacity` wait; what overflows is
-- refused at once. A token bucket of burst 1 whose line has an end.
--
-- Law: at most  1 + count/period * T  starts in any interval of length T, and never more than `capacity` in the line.
--
-- extra      calls   capacity: how many may wait; -1: any number
-- Keys: those of the token bucket.
local gcra = algorithms.token_bucket
local leaky_bucket = {
    commit = gcra.commit,
    refuse = gcra.refuse,
    leave = gcra.leave,
    charge = gcra.charge,
    give_back = gcra.give_back,
    state = gcra.state,
}

function leaky_bucket.check(limit, now, id)
    limit.capacity, limit.extra = limit.extra, 0
    gcra.check(limit, now, id)
end

function leaky_bucket.reserve(limit, now, id, joint, latest)
    if limit.capacity < 0 then return gcra.reserve(limit, now, id, joint, latest) end
    local longest = floor(limit.capacity * limit.period / limit.count)
    local slot = gcra.reserve(limit, now, id, joint, min(latest, now + longest))
    if slot <= now + longest then return slot, false end
    return max(now + 1, slot - longest), true -- when there will be room
end

algorithms.leaky_bucket = leaky_bucket
