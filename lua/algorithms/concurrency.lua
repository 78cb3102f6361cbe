-- Concurrency: so many requests hold a place at once. A request that is allowed holds a lease until it gives it back (release.lua);
-- the lease of a holder that was killed expires when it has not been renewed (renew.lua) for `period` us.
--
-- Law: never more than `count` leases at any time. A wait is an estimate, from how long leases are held: when the next one ends
--      is not known. A lease belongs to one run of a task (`lease_id`, see prelude.lua): a run that asks again, because the reply was
--      lost, finds its lease; another copy of the same task takes one of its own.
--
-- extra      0
-- state key: sorted set, id of a lease -> us at which its lease expires; member '' -> minus the mean time, in us, that
--            leases are held, once that is known; member NUL -> minus the us at which the last place was taken.
--            member \1 ...: see include/waiting_lines.lua. Expires with the last lease, or with the line.
local FIRST_GUESS_US = 100000
local LEAST_WAIT_US = 1000
local concurrency = {unforeseen = true}

function concurrency.read(limit, now)
    limit.held = limit.raw or call('ZCOUNT', limit.state_key, '(' .. int(now), '+inf') -- see read_keys.lua
    limit.waiting = call('ZCARD', limit.slots_key)
end

function concurrency.earliest(limit, now, ahead, permits)
    if limit.mine then return now end
    ahead = max(ahead, limit.kept or 0) -- for those that were rung for, see release_and_acquire.lua: they stand in the line as well
    local over = limit.held + ahead + permits - limit.count
    if over <= 0 then return now end
    local mean = -(tonumber(call('ZSCORE', limit.state_key, '')) or -FIRST_GUESS_US)
    -- Every holder has held its place since the last one was taken, at least.
    mean = max(mean, now + (tonumber(call('ZSCORE', limit.state_key, '\0')) or -now))
    local at = now + max(LEAST_WAIT_US, ceil(over * mean / limit.count))
    if ahead > 0 then return at end
    -- The first in line need not wait for longer than until a lease expires, should its holder be dead.
    local expiry = call('ZRANGEBYSCORE', limit.state_key, '(' .. int(now), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]
    return min(at, tonumber(expiry) or at)
end

function concurrency.take(limit, joint, permits)
    limit.joint, limit.lease = joint, joint + limit.period
    if not limit.mine then limit.held = limit.held + permits end
end

function concurrency.write(limit, now)
    if not limit.lease then return end
    local key, lease = limit.state_key, int(limit.lease)
    call('ZREMRANGEBYSCORE', key, '(0', int(now))
    if limit.mine then
        call('ZADD', key, lease, limit.lease_id)
    else
        call('ZADD', key, lease, limit.lease_id, int(-limit.joint), '\0')
    end
    call('PEXPIRE', key, kept_ms(limit, now, call('ZRANGE', key, '-1', '-1', 'WITHSCORES')[2] + 0))
end

if CORRECTS then
    function concurrency.charge() end

    concurrency.give_back = concurrency.charge
end

function concurrency.state(limit)
    return max(0, limit.count - limit.held), 0
end

function concurrency.check(limit, now, id)
    limit.lease_id = lease_id or id
    limit.mine = id ~= '' and (call('ZSCORE', limit.state_key, limit.lease_id) or 0) - now > 0
    counted.check(limit, now, id)
    limit.behind = limit.grant > now -- a place that may be free by then cannot be taken ahead
end

function concurrency.join(limit, now, id)
    counted.join(limit, now, id)
    limit.behind = limit.grant > now
end

if CORRECTS then
    function concurrency.give_up(limit, now, id)
        counted.give_up(limit, now, id)
        call('ZREM', limit.state_key, '\1@ ' .. id) -- nor does it wait any more, see include/waiting_lines.lua
    end
end

algorithms.concurrency = setmetatable(concurrency, counted)
