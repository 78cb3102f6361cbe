-- repair_lost_keys: repair the keys of parking lots after some were lost (evicted by the store, or restored in part). One step of each.
--
-- A message without a place in the order is parked again, at its place. A copy of it may have been returned before, so the message gets
-- a new copy number. A place without a message is removed. An index that lacks a parking lot or a task is completed.
-- KEYS   for each parking lot the keys of include/lot.lua
-- ARGV   1  memory    us, > 0: see take_due.lua
--        2  most      >= 1: about that many entries are compared in a step
--        3+           for each parking lot: the key of its bucket, text; the part with which to continue, 0: check whether its keys
--                     disagree; the cursor in that part; number of entries of `task_index` that follow; these: an entry without a message is
--                     removed
-- Reply  for each parking lot: the part and the cursor with which to continue, part 0: nothing is left to compare; number of tasks that
--        were parked again; number of places without a message that were removed
-- Writes the parking lots
local MEMORY_US, MOST = tonumber(ARGV[1]), ARGV[2]
--!include prelude.lua
--!include now.lua
--!include lot.lua
--!include assign_copy_number.lua

local function index(id, message)
    local where = place_of(id, message)
    if where then call('ZADD', TASK_INDEX, 0, where) end
end

local function agrees(parked)
    if call('HLEN', PAYLOADS) ~= parked + call('ZCARD', IN_FLIGHT) + call('ZCARD', SUSPENDED) then return false end
    local first = call('ZRANGE', PARKED, 0, 0)[1]
    local where = first and place_of(first, call('HGET', PAYLOADS, first) or '')
    return not where or call('ZSCORE', TASK_INDEX, where)
end

local function compare_messages(found)
    local again = 0
    for i = 1, #found, 2 do
        local id, message = found[i], found[i + 1]
        if call('ZSCORE', PARKED, id) or call('ZSCORE', SUSPENDED, suspended_entry(id, message)) then
            index(id, message)
        elseif not call('ZSCORE', IN_FLIGHT, id) then
            call('ZADD', PARKED, int(place_in(message)), id)
            index(id, renew_copy(id, false))
            again = again + 1
        end
    end
    if again > 0 then call('ZADD', DUE_LOTS, int(now), bucket) end
    return again
end

local function compare_places(key, found)
    local removed = 0
    for i = 1, #found, 2 do
        local id = key == SUSPENDED and match(found[i], '^[^%z]*%z%d+%z(.*)$') or found[i]
        if call('HEXISTS', PAYLOADS, id) == 0 then removed = removed + call('ZREM', key, found[i]) end
    end
    return removed
end

local function repair(part, cursor)
    local again, removed = 0, 0
    if part == 0 then
        local parked, any_suspended = call('ZCARD', PARKED), call('EXISTS', SUSPENDED) == 1
        if parked > 0 or any_suspended or call('EXISTS', PAYLOADS) + call('EXISTS', IN_FLIGHT) > 0 then
            if not call('ZSCORE', DUE_LOTS, bucket) then call('ZADD', DUE_LOTS, int(now), bucket) end
            if any_suspended then call('ZADD', SUSPENDED_LOTS, 0, bucket) end
            part = agrees(parked) and 0 or 1
        end
        return {part, '0', 0, 0}
    end
    local key, found = ({PAYLOADS, PARKED, IN_FLIGHT, SUSPENDED})[part], nil
    if part == 1 then
        cursor, found = unpack(call('HSCAN', key, cursor, 'COUNT', MOST))
        again = compare_messages(found)
    else
        cursor, found = unpack(call('ZSCAN', key, cursor, 'COUNT', MOST))
        removed = compare_places(key, found)
    end
    if cursor == '0' then part = part < 4 and part + 1 or 0 end
    if part == 0 and is_empty() then end_lot() end
    return {part, cursor, again, removed}
end

local answer, at = {}, 3
for lot = 0, #KEYS - 1, LOT_KEYS do
    use_lot(lot, ARGV[at])
    answer[#answer + 1] = repair(tonumber(ARGV[at + 1]), ARGV[at + 2])
    local last = at + 3 + ARGV[at + 3]
    for i = at + 4, last do
        local id = match(ARGV[i], '^[^%z]*%z([^%z]*)%z')
        if id and call('HEXISTS', PAYLOADS, id) == 0 then call('ZREM', TASK_INDEX, ARGV[i]) end
    end
    at = last + 1
end
return answer
