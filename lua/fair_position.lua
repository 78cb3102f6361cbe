-- fair_position: estimate how much comes before a task in the parking lot of a fair limit. Writes nothing.
--
-- The estimate is the one that park replies with (include/join_share.lua): the tasks of its share before it, times the weight of all
-- shares, divided by the weight of its share; at most all tasks.
-- KEYS   see include/lot.lua, with its keys for shares
-- ARGV   1  id        the store's id of the task
--        2  key       text: of the bucket
--        3  weights   in the code, see include/turns.lua
-- Reply  the weight of its share: a text; 0: it has no turn; -1: no index has the task, or the store's user lacks the right to count.
--        About how many tasks are before it; and the permits that these tasks cost: a text
local id, key, WEIGHTS_IN_CODE = ARGV[1], ARGV[2], ARGV[3]
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
local is_known = entry and call('ZSCORE', SHARES, entry) and call('ZSCORE', TURNS, own)
local before = is_known and redis.pcall('ZLEXCOUNT', SHARES, '[' .. own .. '\0', '(' .. entry)
local weight = type(before) == 'number' and shares.weight(own, weight_in_code(WEIGHTS_IN_CODE, own)) or -1
if weight <= 0 then return {precise(weight), 0, '0'} end

local sum = -(call('ZSCORE', TURNS, SUM) or 0) % STORED - 1
local number = call('ZCARD', PARKED) + call('ZCARD', ASIDE)
local tasks = min(number - 1, ceil(before * max(sum, weight) / weight))
return {precise(weight), tasks, precise(tasks * (number + (call('HGET', COSTS, bucket) or 0)) / number)}
