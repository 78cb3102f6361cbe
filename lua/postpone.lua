-- postpone: returned tasks could not be published: restore them to the index of task ids, and return them once more later.
--
-- KEYS   see include/lot.lua
-- ARGV   1  key       text: of the bucket
--        2+           pairs of a task's id and us, > 0: after which the task is returned once more
-- Reply  1
-- Writes the parking lot
local key, FIRST_PAIR = ARGV[1], 2
--!include prelude.lua
--!include now.lua
--!include lot.lua

use_lot(0, key)
for i = FIRST_PAIR, #ARGV, 2 do
    local id = ARGV[i]
    local message = call('ZSCORE', IN_FLIGHT, id) and call('HGET', PAYLOADS, id)
    if message then
        call('ZADD', IN_FLIGHT, int(now + ARGV[i + 1]), id)
        local place = place_of(id, message)
        if place then call('ZADD', TASK_INDEX, 0, place) end
    end
end
return 1
