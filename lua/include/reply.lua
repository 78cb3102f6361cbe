-- The reply of acquire and peek: whole numbers, in one string with spaces between them. (As an array it would cost
-- a client without a parser in C more time than the decision itself.)
--   allowed   0 or 1
--   wait      us until the permit is good (allowed) or until a permit can be had (refused); rounded up
--   binding   which limit said no, counted from 1; 0 when allowed
--   then for each limit: permits left, us until it is full again
local function reply(allowed, wait, binding)
    local answer = format('%d %d %d', allowed, wait, binding)
    for i = 1, #limits do
        answer = answer .. format(' %d %d', limits[i].algorithm.state(limits[i], now))
    end
    return answer
end
