-- list_parked: count and list the tasks in parking lots.
--
-- KEYS   of each parking lot: parked, in_flight, payloads, suspended, costs; see include/lot.lua
-- ARGV   1  from, 2 to: which of the tasks are listed, counted from 0 in their order; an empty text: none
--        3  bytes     >= 1: no more tasks are listed once their messages are that long
--        4+ for each parking lot the key of its bucket, text
-- Reply  us of this clock; for each parking lot: number of parked tasks, number of leaving tasks, us at which its oldest parked task was
--        throttled (0: none), permits that the parked tasks cost, then of each listed task its id, 0, its message
-- Writes nothing
local KEYS_A_LOT = 5
local from, to, BYTES, FIRST_BUCKET = ARGV[1], ARGV[2], tonumber(ARGV[3]), 4
--!include prelude.lua
--!include now.lua
--!include ids_of_lot.lua
--!include task_record.lua

local messages

-- The time since which the task with this place is throttled.
local function since_of(id, place)
    if place <= now and place > now - ORDER_US then return place end -- it has no importance
    return tonumber(match(call('HGET', messages, id) or '', THROTTLED_AT) or place)
end

-- The earliest time since which the first task of any priority is throttled, of so many.
local function oldest_of(parked, number)
    local oldest, from = math.huge, '-inf'
    while number > 0 do
        local id, place = unpack(call('ZRANGEBYSCORE', parked, from, '+inf', 'WITHSCORES', 'LIMIT', 0, 1))
        if not id then break end
        local since = since_of(id, tonumber(place))
        oldest = min(oldest, since)
        if number == 1 then break end
        from = '(' .. int(max(tonumber(place), now + tonumber(place) - since)) -- behind the tasks of its priority
    end
    return oldest
end

local answer, bytes = {int(now)}, 0
for i = 1, #KEYS, KEYS_A_LOT do
    local parked, leaving, aside, costs = KEYS[i], KEYS[i + 1], KEYS[i + 3], KEYS[i + 4]
    messages = KEYS[i + 2]
    local number, suspended, after = call('ZCARD', parked), call('ZCARD', aside), '-'
    local oldest = oldest_of(parked, number)
    while suspended > 0 do -- one look for each queue
        local queue, place, id = match(call('ZRANGEBYLEX', aside, after, '+', 'LIMIT', 0, 1)[1] or '', '^([^%z]*)%z(%d+)%z(.*)$')
        if not queue then break end
        oldest, after = min(oldest, since_of(id, tonumber(place))), '[' .. queue .. '\1'
    end
    number = number + suspended
    local lot = {number, call('ZCARD', leaving), oldest == math.huge and '0' or int(oldest)}
    lot[4] = number == 0 and 0 or max(number, call('HGET', costs, ARGV[FIRST_BUCKET + (i - 1) / KEYS_A_LOT]) or 0)
    for _, id in ipairs(from ~= '' and ids_of_lot(parked, aside, from, to) or {}) do
        if bytes >= BYTES then break end
        local message = call('HGET', messages, id) or ''
        lot[#lot + 1] = id
        lot[#lot + 1] = '0'
        lot[#lot + 1] = message
        bytes = bytes + #message
    end
    answer[#answer + 1] = lot
end
return answer
