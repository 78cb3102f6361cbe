-- parked: what is in the parking lots of a limit?
--
-- KEYS   1  lots, 2 costs, see include/lot.lua; then for each lot that is asked for: parked, leaving, messages,
--        aside
-- ARGV   1  from, 2 to: which of the tasks are listed, counted from 0 in their order; an empty text: none
--        3  bytes     >= 1: no more are listed when their messages are that long
--        4+ for each lot the key of its bucket, text
-- Reply  us of this clock; for each lot: how many are parked, how many are leaving, us since which the first is throttled
--        (0: none), permits that the parked tasks cost, then of each listed task its id, 0, its message
-- Writes nothing
local COSTS, FIRST_LOT = KEYS[2], 3
local from, to, BYTES, FIRST_BUCKET = ARGV[1], ARGV[2], tonumber(ARGV[3]), 4
--!include prelude.lua
--!include now.lua
--!include ids_of_lot.lua

local answer, bytes = {int(now)}, 0
for i = FIRST_LOT, #KEYS, 4 do
    local parked, leaving, messages, aside = KEYS[i], KEYS[i + 1], KEYS[i + 2], KEYS[i + 3]
    local oldest = tonumber(call('ZRANGE', parked, 0, 0, 'WITHSCORES')[2]) or math.huge
    local number, after = call('ZCARD', aside), '-'
    while number > 0 do -- one look for each queue
        local queue, since = match(call('ZRANGEBYLEX', aside, after, '+', 'LIMIT', 0, 1)[1] or '', '^([^%z]*)%z(%d+)')
        if not queue then break end
        oldest, after = min(oldest, since), '[' .. queue .. '\1'
    end
    number = number + call('ZCARD', parked)
    local lot = {number, call('ZCARD', leaving), oldest == math.huge and '0' or int(oldest)}
    lot[4] = number + (number > 0 and call('HGET', COSTS, ARGV[FIRST_BUCKET + (i - FIRST_LOT) / 4]) or 0)
    for _, id in ipairs(from ~= '' and ids_of_lot(parked, aside, from, to) or {}) do
        if bytes >= BYTES then break end
        local message = call('HGET', messages, id)
        lot[#lot + 1] = id
        lot[#lot + 1] = '0'
        lot[#lot + 1] = message
        bytes = bytes + #message
    end
    answer[#answer + 1] = lot
end
return answer
