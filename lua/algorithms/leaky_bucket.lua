-- Leaky bucket, as a queue: requests go one by one, evenly spaced, and at most `capacity` wait; a request that finds the queue full
-- is refused at once. A token bucket of burst 1 whose line has an end.
--
-- Law: at most  1 + count/period * T  starts in any interval of length T, and never more than `capacity` in the line.
--
-- extra      calls   capacity: how many may wait; -1: any number
-- Keys: those of the token bucket.
local gcra = algorithms.token_bucket
local leaky_bucket = setmetatable({lends = false}, {__index = gcra})

function leaky_bucket.check(limit, now)
    limit.capacity, limit.extra = limit.extra, 0
    gcra.check(limit, now)
    limit.queue = limit.capacity < 0 and math.huge or floor(limit.capacity * limit.period / limit.count)
    limit.line = limit.line or limit.grant > now + limit.queue
end

function leaky_bucket.join(limit, now, id)
    if limit.cursor > now then gcra.join(limit, now, id) end
    -- Nor may a permit be taken ahead beyond the queue's end. A request that has a slot is in the queue already.
    if not limit.owner and limit.grant > now + limit.queue then limit.behind = true end
end

function leaky_bucket.reserve(limit, now, id, joint, latest)
    if limit.owner then return gcra.reserve(limit, now, id, joint, latest) end
    local last = max(now, limit.paused or now) + limit.queue -- a pause fills no queue
    local slot = gcra.reserve(limit, now, id, joint, min(latest, last))
    if slot <= last then return slot end
    return max(now + 1, slot - limit.queue), true -- when there will be room
end

if NUMBER > 1 then
    -- Sets `full`, when there will be room, if the queue is.
    function leaky_bucket.place(limit, now, at, last)
        local slot = gcra.place(limit, now, at, last)
        local most = max(now, limit.paused or now) + limit.queue
        if not limit.owner and slot > max(at, most) then limit.full = max(now + 1, slot - limit.queue) end
        return slot
    end
end

algorithms.leaky_bucket = leaky_bucket
