-- parked: what is in the parking lots of a limit?
--
-- KEYS   1  lots, see include/lot.lua; then for each lot that is asked for: parked, leaving, messages
-- ARGV   1  from, 2 to: which of the tasks are listed, counted from 0 in their order; an empty text: none
--        3  bytes     >= 1: no more are listed when their messages are that long
-- Reply  us of this clock; for each lot: how many are parked, how many are leaving, us since which the first is throttled
--        (0: none), then of each listed task its id, 0, its message
-- Writes nothing
--!include prelude.lua
--!include now.lua

local answer, bytes = {int(now)}, 0
for i = 2, #KEYS, 3 do
    local parked, leaving, messages = KEYS[i], KEYS[i + 1], KEYS[i + 2]
    local lot = {call('ZCARD', parked), call('ZCARD', leaving), call('ZRANGE', parked, 0, 0, 'WITHSCORES')[2] or '0'}
    for _, id in ipairs(ARGV[1] ~= '' and call('ZRANGE', parked, ARGV[1], ARGV[2]) or {}) do
        if bytes >= tonumber(ARGV[3]) then break end
        local message = call('HGET', messages, id)
        lot[#lot + 1] = id
        lot[#lot + 1] = '0'
        lot[#lot + 1] = message
        bytes = bytes + #message
    end
    answer[#answer + 1] = lot
end
return answer
