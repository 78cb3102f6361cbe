-- reconcile: make the keys of lots agree again after some were lost (evicted by the store, or restored in part). One step of each lot.
--
-- A message without a place in the order is parked again, at its place: a copy of it may have left before, so it gets the number of a
-- new one. A place without a message is removed. An index that misses a lot or a task is completed.
-- KEYS   for each lot those of include/lot.lua, with those of who shares its limit
-- ARGV   1  memory    us, > 0: see return_due.lua
--        2  most      >= 1: about so many entries are compared in a step
--        3+           for each lot: its key, text; the part with which to go on, 0: do its keys disagree at all?; the cursor there;
--                     how many entries of `where` follow; these: those without a message are removed
-- Reply  for each lot: the part and the cursor with which to go on, part 0: nothing is left to compare; how many tasks were parked again;
--        how many places without a message were removed
-- Writes the lots
local MEMORY_US, MOST = tonumber(ARGV[1]), ARGV[2]
--!include prelude.lua
--!include now.lua
--!include lot.lua
--!include order.lua
--!include renew_copy.lua
LOT_KEYS, shares = 16, {} -- what is known of those who share a limit ends with the lot, see shares.lua

local function place_of_entry(entry)
    return match(entry, '^[^%z]*%z(%d+)%z(.*)$')
end

local function is_aside(id, message)
    if call('EXISTS', ASIDE) == 0 then return false end
    for _, queue in ipairs(queues_of(id)) do
        if call('ZSCORE', ASIDE, aside(queue, place_in(message), id)) then return true end
    end
    return false
end

local function index(id, message)
    local where = place_of(id, message)
    if where then call('ZADD', WHERE, 0, where) end
end

local function agrees(parked)
    if call('HLEN', MESSAGES) ~= parked + call('ZCARD', LEAVING) + call('ZCARD', ASIDE) then return false end
    local first = call('ZRANGE', PARKED, 0, 0)[1]
    local where = first and place_of(first, call('HGET', MESSAGES, first))
    return not where or call('ZSCORE', WHERE, where)
end

local function compare_messages(found)
    local again = 0
    for i = 1, #found, 2 do
        local id, message = found[i], found[i + 1]
        if call('ZSCORE', PARKED, id) or is_aside(id, message) then
            index(id, message)
        elseif not call('ZSCORE', LEAVING, id) then
            call('ZADD', PARKED, int(place_in(message)), id)
            index(id, renew_copy(id, false))
            again = again + 1
        end
    end
    if again > 0 then call('ZADD', LOTS, int(now), bucket) end
    return again
end

local function compare_places(key, found)
    local removed = 0
    for i = 1, #found, 2 do
        local id = key == ASIDE and select(2, place_of_entry(found[i])) or found[i]
        if call('HEXISTS', MESSAGES, id) == 0 then removed = removed + call('ZREM', key, found[i]) end
    end
    return removed
end

local function reconcile(part, cursor)
    local again, removed = 0, 0
    if part == 0 then
        local parked, is_any_aside = call('ZCARD', PARKED), call('EXISTS', ASIDE) == 1
        if parked > 0 or is_any_aside or call('EXISTS', MESSAGES) + call('EXISTS', LEAVING) > 0 then
            if not call('ZSCORE', LOTS, bucket) then call('ZADD', LOTS, int(now), bucket) end
            if is_any_aside then call('ZADD', ASIDES, 0, bucket) end
            part = agrees(parked) and 0 or 1
        end
        return {part, '0', 0, 0}
    end
    local key, found = ({MESSAGES, PARKED, LEAVING, ASIDE})[part], nil
    if part == 1 then
        cursor, found = unpack(call('HSCAN', key, cursor, 'COUNT', MOST))
        again = compare_messages(found)
    else
        cursor, found = unpack(call('ZSCAN', key, cursor, 'COUNT', MOST))
        removed = compare_places(key, found)
    end
    if cursor == '0' then part = part < 4 and part + 1 or 0 end
    if part == 0 and nobody_is_left() then end_lot() end
    return {part, cursor, again, removed}
end

local answer, at = {}, 3
for lot = 0, #KEYS - 1, LOT_KEYS do
    use_lot(lot, ARGV[at])
    answer[#answer + 1] = reconcile(tonumber(ARGV[at + 1]), ARGV[at + 2])
    local last = at + 3 + ARGV[at + 3]
    for i = at + 4, last do
        local id = match(ARGV[i], '^[^%z]*%z([^%z]*)%z')
        if id and call('HEXISTS', MESSAGES, id) == 0 then call('ZREM', WHERE, ARGV[i]) end
    end
    at = last + 1
end
return answer
