-- hand_back: let tasks out to the queues that they were sent to, as they were sent: whoever calls publishes them. In steps.
--
-- What is published then says nothing of its lot. So that it may be parked again before it is told that it was published, what leaves
-- is known by another id until then.
-- KEYS   see include/lot.lua
-- ARGV   1  again, 2 memory: us, see unpark.lua
--        3  key       text: of the bucket
--        4  bytes     >= 1: no more leave when their messages are that long
--        5  most      >= 1: tasks
--        6  until     us: those who were parked by then; 0: now
--        7  overdue   us, >= 0: and those that have left and would be let out once more within that time, for nobody said that they are
--                     at the broker
--        8+           queues: only those that are aside for one of them; none: all
-- Reply  us of this clock; for each that leaves its id from now on, 0, its message
-- Writes the lot
local AGAIN_US, MEMORY_US, BYTES, MOST = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[4]), tonumber(ARGV[5])
--!include prelude.lua
--!include now.lua
--!include lot.lua
--!include leave.lua

use_lot(0, ARGV[3])
local latest = ARGV[6] == '0' and now or tonumber(ARGV[6])
local ids = {}

local function those_aside(from, to)
    if #ids >= MOST then return end
    for _, entry in ipairs(call('ZRANGEBYLEX', ASIDE, from, to, 'LIMIT', 0, MOST - #ids)) do
        local since, id = match(entry, '^[^%z]*%z(%d+)%z(.*)$')
        if tonumber(since) <= latest then ids[#ids + 1] = id end
    end
end

if #ARGV == 7 then
    ids = call('ZRANGEBYSCORE', PARKED, '-inf', int(latest), 'LIMIT', 0, MOST)
    those_aside('-', '+')
    if #ids < MOST then
        for _, id in ipairs(call('ZRANGEBYSCORE', LEAVING, '-inf', int(now + ARGV[7]), 'LIMIT', 0, MOST - #ids)) do ids[#ids + 1] = id end
    end
end
for i = 8, #ARGV do those_aside('[' .. ARGV[i] .. '\0', '(' .. ARGV[i] .. '\1') end

for _, id in ipairs(ids) do
    if bytes >= BYTES then break end
    local before = #out
    leave(id, 0)
    if #out > before and string.sub(id, 1, 1) ~= '^' then
        call('HDEL', MESSAGES, id)
        call('ZREM', LEAVING, id)
        out[before + 1] = '^' .. id
        call('HSET', MESSAGES, out[before + 1], out[before + 3])
        call('ZADD', LEAVING, int(now + AGAIN_US), out[before + 1])
    end
end
if nobody_is_left() then end_lot() end
return {int(now), unpack(out)}
