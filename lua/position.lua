-- position: find the position of a task in a parking lot. Writes nothing.
--
-- KEYS   see include/lot.lua
-- ARGV   1  id        the store's id of the task
--        2  key       text: of the bucket
-- Reply  us of this clock; 'parked', 'aside' (no worker consumes its queue), 'leaving' (returned, and not confirmed to be at the broker)
--        or ''; number of tasks parked before it, -1 if it is not parked; number of tasks parked in the parking lot; permits that all
--        of these cost; then the stored text of the task: "<cost> <copy> <since us> <message>", or ''
local id, key = ARGV[1], ARGV[2]
--!include prelude.lua
--!include now.lua
--!include lot.lua
--!include order.lua

use_lot(0, key)
local message = call('HGET', MESSAGES, id) or ''
local rank, where = call('ZRANK', PARKED, id), 'parked'
local number = call('ZCARD', PARKED)
if not rank then
    rank, where = -1, call('ZSCORE', LEAVING, id) and 'leaving' or ''
    for _, queue in ipairs(message ~= '' and where == '' and queues_of(id) or {}) do
        local entry = call('ZRANK', ASIDE, aside(queue, place_in(message), id))
        if entry then rank, where = number + entry, 'aside' end
    end
end
number = number + call('ZCARD', ASIDE)
return {int(now), where, rank, number, int(number + (call('HGET', COSTS, bucket) or 0)), message}
