-- turn: what comes before a task of a lot that is shared, by the turns of all shares. Some of them a call. Writes nothing.
--
-- KEYS   see include/lot.lua, with those of who shares the limit
-- ARGV   1  id        what the store knows the task by
--        2  key       text: of the bucket
--        3  weights   in the code, see include/turns.lua
--        4  from      of the last reply; 0 at first
--        5  most      >= 1: shares that are looked at
--        6  start     of the last reply; '' at first
-- Reply  the virtual time at which the task starts: a text; '' where it has none: its share weighs 0, or it is in no index. Of the shares
--        that were looked at (at first its own, too) the tasks that start before it, and the permits that these cost. From where to go
--        on; 0: that was all. What its share weighs: a text; -1: it is in no
--        index, or the store's user may not count
local id, key, WEIGHTS_IN_CODE, FROM, MOST, START = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local READ, OWN = 20, 300 -- of how many tasks what they cost is read: of each share, and of its own; others cost as much on average
--!include prelude.lua
--!include now.lua
--!include lot.lua
--!include order.lua
--!include shares.lua
--!include share_weights.lua
--!include share_of.lua
--!include weight_in_code.lua

use_lot(0, key)
local message = call('HGET', MESSAGES, id)
local own = message and shares.of(message)
local entry = own and shares.entry(own, place_in(message), id)
local may = type(redis.pcall('ZLEXCOUNT', SHARES, '-', '(a')) == 'number' -- a right that the store's user may lack
local tag = may and own and call('ZSCORE', SHARES, entry) and tonumber(call('ZSCORE', TURNS, own))
local weight = tag and shares.weight(own, weight_in_code(WEIGHTS_IN_CODE, own)) or -1
if weight <= 0 then return {'', 0, '0', 0, precise(weight)} end
local clock = -call('ZSCORE', TURNS, CLOCK)
tag = tag < HELD and max(tag, clock) or clock -- it was held back, and is let go at the next look
local all_cost_1 = call('HEXISTS', COSTS, bucket) == 0

-- How many of the tasks of a share start before virtual time `start`, or are before the entry `before`; and what they cost.
local function those_before(share, tag, weight, start, before)
    local first, last = '[' .. share .. '\0', before and '(' .. before or '(' .. share .. '\1'
    local left, number, cost = call('ZLEXCOUNT', SHARES, first, last), 0, 0
    local most = before and left or math.huge
    local function does_start(at) return before or at < start or at == start and share < own end
    if not all_cost_1 then
        for _, each in ipairs(call('ZRANGEBYLEX', SHARES, first, last, 'LIMIT', 0, before and OWN or READ)) do
            if not does_start(tag + cost / weight) then return number, cost end
            number = number + 1
            cost = cost + (match(call('HGET', MESSAGES, string.sub(each, #share + 19)) or '1', '^%d+'))
        end
    end
    local each = number > 0 and cost / number or 1
    local more = left - number
    if not before and more > 0 then
        local steps = max(0, ceil((start - tag - cost / weight) * weight / each - 1e-9))
        if share < own and tag + (cost + steps * each) / weight == start then steps = steps + 1 end
        more = min(more, steps)
    end
    return number + more, cost + more * each
end

local number, cost = 0, 0
if not START then
    number, cost = those_before(own, tag, weight, nil, entry)
    START = tag + cost / weight
end
local got = call('ZRANGE', TURNS, FROM, FROM + MOST - 1, 'WITHSCORES')
local next_from = #got == 2 * MOST and FROM + MOST or 0
for i = 1, #got, 2 do
    local share, its_tag = got[i], tonumber(got[i + 1])
    if its_tag > START then
        next_from = 0
        break
    end
    local its_weight = its_tag >= 0 and share ~= own and shares.weight(share, weight_in_code(WEIGHTS_IN_CODE, share)) or 0
    if its_weight > 0 then
        local some, permits = those_before(share, its_tag, its_weight, START)
        number, cost = number + some, cost + permits
    end
end
return {precise(START), number, precise(cost), next_from, precise(weight)}
