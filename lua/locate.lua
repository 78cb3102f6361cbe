-- locate: where tasks of some limits are parked: how many there are, and in which parking lots the ones with these ids are.
--
-- KEYS   of each limit: due and task_index, see include/lot.lua
-- ARGV   ids of tasks
-- Reply  for each limit: number of its parking lots, number of its parked tasks, then its entries of task_index for these ids
-- Writes nothing
--!include prelude.lua

local answer = {}
for i = 1, #KEYS, 2 do
    local parked = call('ZCARD', KEYS[i + 1])
    local found = {call('ZCARD', KEYS[i]), parked}
    for _, task in ipairs(parked > 0 and ARGV or {}) do
        for _, entry in ipairs(call('ZRANGEBYLEX', KEYS[i + 1], '[' .. task .. '\0', '(' .. task .. '\1')) do
            found[#found + 1] = entry
        end
    end
    answer[#answer + 1] = found
end
return answer
