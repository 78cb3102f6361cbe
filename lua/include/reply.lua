-- The reply of a decision: whole numbers, in one string with spaces between them. (As an array it would cost a client
-- without a parser in C more time than the decision itself.)
--   allowed   1 yes, 0 no, -1 no and there is no room to wait (leaky bucket)
--   wait      us until the permit is good (allowed) or until a permit can be had (refused); rounded up
--   binding   which limit said no, counted from 1; 0 when allowed
--   at        us of this clock: when the permit is good (allowed), or now
--   then for each limit: permits left, us until it is full again
--   then, if one of them is stored, for each limit as it is in force: size; count and period, where permits come evenly (else 0
--   for count); version
--
-- Uses limits, see read_limits.lua. Gives reply(allowed, at, wait, binding): the text.
local function reply(allowed, at, wait, binding)
    local first = limits[1]
    local answer = format('%d %d %d %d %d %d', allowed, wait, binding, at, first.algorithm.state(first, now))
    local stored = first.stored
    for i = 2, #limits do
        answer = answer .. format(' %d %d', limits[i].algorithm.state(limits[i], now))
        stored = stored or limits[i].stored
    end
    for i = 1, stored and #limits or 0 do
        local limit = limits[i]
        local count = limit.algorithm.evenly and limit.count or 0
        answer = answer .. format(' %d %d %d %d', limit.burst, count, limit.period, limit.version or 0)
    end
    return answer
end
