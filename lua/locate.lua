-- locate: where tasks of some limits are parked: how many there are, and in which parking lots the ones with these ids are.
--
-- KEYS   of each limit: due and task_index, see include/lot.lua
-- ARGV   1  keys      >= 0: how many keys of buckets are listed, of all limits together
--        2+ ids of tasks
-- Reply  for each limit: number of its parking lots, number of its parked tasks, list of the keys of the buckets with these lots (empty
--        if there are more than `keys` leaves), then its entries of task_index for these ids
-- Writes nothing
local left, FIRST_ID = tonumber(ARGV[1]), 2
--!include prelude.lua

local answer = {}
for i = 1, #KEYS, 2 do
    local lots, keys = call('ZCARD', KEYS[i]), {}
    local parked = (lots > 0 or #ARGV >= FIRST_ID) and call('ZCARD', KEYS[i + 1]) or 0
    if lots > 0 and lots <= left then keys, left = call('ZRANGE', KEYS[i], 0, -1), left - lots end
    local found = {lots, parked, keys}
    for j = FIRST_ID, parked > 0 and #ARGV or 0 do
        for _, entry in ipairs(call('ZRANGEBYLEX', KEYS[i + 1], '[' .. ARGV[j] .. '\0', '(' .. ARGV[j] .. '\1')) do
            found[#found + 1] = entry
        end
    end
    answer[#answer + 1] = found
end
return answer
