-- position: find the position of a task in a parking lot. Writes nothing.
--
-- In the parking lot of a fair limit, how much comes before a task is estimated, as park does (include/add_task_to_share.lua): the tasks of its
-- share before it, times the weight of all shares, divided by the weight of its share; at most all tasks.
-- KEYS   see include/lot.lua
-- ARGV   1  id        the store's id of the task
--        2  key       text: of the bucket
--        3  weights   in the code, see include/next_share.lua
-- Reply  us of this clock; 'parked', 'aside' (no worker consumes its queue), 'leaving' (returned, and not confirmed to be at the broker)
--        or ''; number of tasks parked before it, -1 if it is not parked; number of tasks parked in the parking lot; permits that all
--        of these cost; then the stored text of the task, see include/task_record.lua, or ''; then the weight of its share, a text: 0: it has
--        no turn; -1: the limit is not fair, or the store's user lacks the right to count; then about how many tasks are before it; then
--        how many of its share are
local id, key, WEIGHTS_IN_CODE = ARGV[1], ARGV[2], ARGV[3]
--!include prelude.lua
--!include now.lua
--!include lot.lua
--!include shares.lua
--!include share_weights.lua
--!include read_code_weight.lua

use_lot(0, key)
local message = call('HGET', PAYLOADS, id) or ''
local rank, where = call('ZRANK', PARKED, id), 'parked'
local number = call('ZCARD', PARKED)
if not rank then
    rank, where = -1, call('ZSCORE', IN_FLIGHT, id) and 'leaving' or ''
    local entry = where == '' and call('ZRANK', SUSPENDED, suspended_entry(id, message))
    if entry then rank, where = number + entry, 'aside' end
end
number = number + call('ZCARD', SUSPENDED)

local own = match(message, SHARE) or ''
local entry = shares.entry(own, place_in(message), id)
local is_known = call('ZSCORE', SHARES, entry) and call('ZSCORE', TURNS, own)
local before = is_known and redis.pcall('ZLEXCOUNT', SHARES, '[' .. own .. '\0', '(' .. entry)
local weight, tasks = -1, 0
if type(before) == 'number' then
    weight = shares.weight(own, weight_in_code(WEIGHTS_IN_CODE, own))
    local sum = -(call('ZSCORE', TURNS, SUM) or 0) % STORED - 1
    tasks = weight > 0 and min(number - 1, ceil(before * max(sum, weight) / weight)) or 0
end
return {int(now), where, rank, number, int(cost_of(number)), message, precise(weight), tasks, weight < 0 and 0 or before}
