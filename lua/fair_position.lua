-- fair_position: about how much comes before a task of a lot that is shared. Writes nothing.
--
-- An estimate, as a task is told when it is parked (include/join_share.lua): the tasks of its share that are before it, times what all
-- shares weigh by what its own weighs; no more than all tasks.
-- KEYS   see include/lot.lua, with those of who shares the limit
-- ARGV   1  id        what the store knows the task by
--        2  key       text: of the bucket
--        3  weights   in the code, see include/turns.lua
-- Reply  what its share weighs: a text; 0: it has no turn; -1: it is in no index, or the store's user may not count. About how many tasks
--        are before it; and the permits that these cost: a text
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
