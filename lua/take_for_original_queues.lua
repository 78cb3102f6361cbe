-- take_for_original_queues: return tasks to the queues that they were sent to, as they were sent: the caller publishes them. In steps.
--
-- A task that was returned before, and is not confirmed to be published, gets the number of a new copy. Only the new copy may run, as the
-- older one may be on its way. So a message that is returned in this way has to contain its copy number.
-- KEYS   see include/lot.lua
-- ARGV   1  again, 2 memory: us, see take_due.lua
--        3  key       text: of the bucket
--        4  bytes     >= 1: no more tasks are returned once their messages are that long
--        5  most      >= 1: tasks
--        6  until     us: only tasks that were parked by then; 0: now
--        7  overdue   us, >= 0: also tasks that were returned before and would be returned once more within that time, since no worker
--                     has reported that they are at the broker
--        8+           queues: only tasks that are set aside for one of them; none: all
-- Reply  us of this clock; for each returned task its id, 0, its message
-- Writes the parking lot
local AGAIN_US, MEMORY_US, key, BYTES, MOST = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
local UNTIL, OVERDUE_US, FIRST_QUEUE = tonumber(ARGV[6]), ARGV[7], 8
--!include prelude.lua
--!include now.lua
--!include lot.lua
--!include shares.lua
--!include take_task_to_publish.lua
--!include tasks_parked_before.lua

use_lot(0, key)
local latest = UNTIL == 0 and now or UNTIL
local ids = {}

local function add_suspended(from, to)
    if #ids >= MOST then return end
    for _, entry in ipairs(call('ZRANGEBYLEX', SUSPENDED, from, to, 'LIMIT', 0, MOST - #ids)) do
        local id = match(entry, '^[^%z]*%z%d+%z(.*)$')
        if tonumber(match(call('HGET', PAYLOADS, id) or '', THROTTLED_AT) or 0) <= latest then ids[#ids + 1] = id end
    end
end

if #ARGV < FIRST_QUEUE then
    local parked = parked_by(PARKED, latest, 0, MOST)
    for i = 1, #parked, 2 do ids[#ids + 1] = parked[i] end
    add_suspended('-', '+')
    if #ids < MOST then
        local overdue = call('ZRANGEBYSCORE', IN_FLIGHT, '-inf', int(now + OVERDUE_US), 'LIMIT', 0, MOST - #ids)
        for _, id in ipairs(overdue) do ids[#ids + 1] = id end
    end
end
for i = FIRST_QUEUE, #ARGV do add_suspended('[' .. ARGV[i] .. '\0', '(' .. ARGV[i] .. '\1') end

for _, id in ipairs(ids) do
    if bytes >= BYTES then break end
    return_task(id, 0, false, call('ZREM', IN_FLIGHT, id) == 1 and renew_copy(id, true) or nil)
end
if is_empty() then end_lot() end
return {int(now), unpack(out)}
