-- Concurrency: so many places are held at once. A request that is allowed holds a lease of `cost` places until it gives it back
-- (release.lua); the lease of a holder that was killed expires when it has not been renewed (renew.lua) for `period` us.
--
-- Law: never more than `count` places at any time. A wait is an estimate, from how long leases are held: when the next one ends
--      is not known. A lease belongs to one run of a task (`lease_id`, see prelude.lua): a run that asks again, because the reply was
--      lost, finds its lease; another copy of the same task takes one of its own.
--
-- A request of several places waits until as many are free at the same time. So that requests of fewer places do not take them one by
-- one, the first of the requests that wait has its places set aside: others go if there are enough beside those. First is the one that
-- waits for the longest, of those whose slots are near: it has one within a second while it goes on asking, so that nothing is kept
-- for a dead one for long. Where all requests take one place, no request needs that, and nothing is noted. Nor is it done for a request of
-- several limits, which takes places that are set aside as well: two of these might each be first in another limit, and both wait for
-- ever. Others may overtake it.
--
-- extra      0
-- state key: sorted set, member of a lease (see lease_sizes.lua) -> us at which it expires; member '' -> minus the mean time, in us, that
--            leases are held, once that is known; member NUL -> minus the us at which the last place was taken.
--            member \1 ...: see include/concurrency_waiters.lua; NUL "+": see include/lease_sizes.lua.
--            member \2 <places> <blank> <id>, a mark -> above -1 and below 0, minus us / 2^53: since when a request waits. Of requests
--            of several places, and of those that came while one of these waited. Its slot is in the slots key: without it, or when
--            that has long passed, the request will not come.
--            Expires with the last lease, or with the line.
--!include lease_sizes.lua
local FIRST_GUESS_US = 100000
local LEAST_WAIT_US = 1000
local FIRST_FEW = '32' -- of the marks, those that are read
local ASKS_US = 1000000 -- the first asks again within that time
local LATE_US = 2000000 -- a slot is near for so long before and after its time
local concurrency = {unforeseen = true}

local function mark_of(limit, id)
    return '\2' .. int(limit.cost) .. ' ' .. id
end

-- Sets limit.leads: this request has a mark, and is the first; limit.aside: the places of the first, if that is another one, has not
-- had them held yet (see concurrency_waiters.lua), and this one came later; limit.ordered: there are marks; limit.gone: marks of requests that
-- will not come.
local function look_at_first(limit, now)
    local key = limit.state_key
    local marks = call('ZRANGE', key, '(0', '(-1', 'BYSCORE', 'REV', 'LIMIT', '0', FIRST_FEW)
    limit.ordered = #marks > 0
    for _, mark in ipairs(marks) do
        local places, id = match(mark, '^\2(%d+) (.*)$')
        local slot = call('ZSCORE', limit.slots_key, id)
        if id == limit.id then
            limit.leads = slot and mark == mark_of(limit, id)
            return
        elseif not slot or slot + LATE_US < now then
            limit.gone[#limit.gone + 1] = mark
        elseif slot - LATE_US <= now then
            -- A request that has a slot and no mark was there before the first request of several places.
            local earlier = limit.id ~= '' and call('ZSCORE', limit.slots_key, limit.id)
                and not call('ZSCORE', key, mark_of(limit, limit.id))
            local is_held = (call('ZSCORE', key, holder(id, places + 0)) or 0) - now > 0
            if not (earlier or is_held) then limit.aside = places + 0 end
            return
        end
    end
end

function concurrency.read(limit, now)
    local key = limit.state_key
    limit.more, limit.had_more = more_places(key)
    limit.held = (limit.raw or call('ZCOUNT', key, '(' .. int(now), '+inf')) + limit.more -- see fetch_state_and_config.lua
    limit.waiting = call('ZCARD', limit.slots_key) * limit.cost -- as if each took as many
    limit.aside, limit.leads, limit.ordered, limit.gone = 0, false, false, {}
    if limit.waiting > 0 and not limit.among then look_at_first(limit, now) end
end

function concurrency.earliest(limit, now, ahead, permits)
    if limit.mine then return now end
    -- `kept`: for lines that were notified, see release_and_acquire.lua: they stand in the line as well
    ahead = max(ahead, limit.kept or 0, limit.aside)
    local over = limit.held + ahead + permits - limit.count
    if over <= 0 then return now end
    local mean = -(tonumber(call('ZSCORE', limit.state_key, '')) or -FIRST_GUESS_US)
    -- Every holder has held its place since the last one was taken, at least.
    mean = max(mean, now + (tonumber(call('ZSCORE', limit.state_key, '\0')) or -now))
    local at = now + max(LEAST_WAIT_US, ceil(over * mean / limit.count))
    if limit.leads then at = min(at, now + ASKS_US) end
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
    call('ZADD', key, lease, limit.member, int(-limit.joint), '\0')
    if not limit.mine then limit.more = limit.more + limit.cost - 1 end
    if limit.more > 0 then call('ZADD', key, int(-limit.more), MORE) elseif limit.had_more then call('ZREM', key, MORE) end
    if limit.ordered or limit.among and limit.cost > 1 then call('ZREM', key, mark_of(limit, limit.id), unpack(limit.gone)) end
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
    limit.member = holder(lease_id or id, limit.cost)
    limit.mine = id ~= '' and (call('ZSCORE', limit.state_key, limit.member) or 0) - now > 0
    counted.check(limit, now, id)
    limit.behind = limit.grant > now -- a place that may be free by then cannot be taken ahead
end

function concurrency.join(limit, now, id)
    counted.join(limit, now, id)
    if limit.leads and limit.owner and limit.owner > now + ASKS_US then limit.owner = now end -- its slot is far: it gets a nearer one
    limit.behind = limit.grant > now
end

function concurrency.claim(limit, now, id, at)
    local is_new = not limit.owner
    counted.claim(limit, now, id, at)
    local key, mark = limit.state_key, mark_of(limit, id)
    if limit.among then
        if limit.cost > 1 then call('ZREM', key, mark) end -- of take_due.lua, which knows one of its limits
    elseif limit.cost > 1 or is_new and limit.ordered then
        local newest = call('ZRANGE', key, '(-1', '(0', 'BYSCORE', 'LIMIT', '0', '1', 'WITHSCORES')[2]
        local since = max(now, newest and -newest * 2^53 + 1 or now) -- one script may give slots to several
        call('ZADD', key, 'NX', format('%.17g', -since / 2^53), mark)
        local lasts = at - now + LATE_US
        if call('PTTL', key) * 1000 < lasts then call('PEXPIRE', key, int(ceil(lasts / 1000))) end
    end
    if #limit.gone > 0 then call('ZREM', key, unpack(limit.gone)) end
end

if CORRECTS then
    function concurrency.give_up(limit, now, id)
        counted.give_up(limit, now, id)
        -- Nor does it wait any more, see include/concurrency_waiters.lua.
        call('ZREM', limit.state_key, '\1@ ' .. holder(id, limit.cost), mark_of(limit, id))
    end
end

algorithms.concurrency = setmetatable(concurrency, counted)
