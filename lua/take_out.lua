-- take_out: take tasks out of a parking lot before their turn, to be published at once or deleted. One script has a bound of work: the
-- reply contains the position at which the next call continues.
--
-- KEYS   see include/lot.lua
-- ARGV   1  purge     1: delete the tasks; 0: the caller publishes them
--        2  again, 3 memory: us, see take_due.lua
--        4  key       text: of the bucket
--        5  bytes     >= 1: no more tasks are taken out once their messages are that long
--        6  most      0: the tasks with the ids that follow; else that many of all parked tasks, in their order
--        7  from      the place of the task behind which to continue, or 'aside', or ''; with `last`
--        8  until     us: only tasks that were parked by then; 0: now
--        9  last      text: the id of that task, or its entry in `suspended`
--        10+          ids
-- Reply  us of this clock; number of processed ids; number of tasks taken out; then `from` and `last` for the next call, '' if no
--        tasks are left; then, unless `purge`, for each task its id, 0, its message
-- Writes the parking lot
local PURGE, AGAIN_US, MEMORY_US = ARGV[1] == '1', tonumber(ARGV[2]), tonumber(ARGV[3])
local key, BYTES, MOST = ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6])
local FROM, UNTIL, LAST, FIRST_ID = ARGV[7], tonumber(ARGV[8]), ARGV[9], 10
--!include prelude.lua
--!include now.lua
--!include lot.lua
--!include shares.lua
--!include take_task_to_publish.lua
--!include tasks_parked_before.lua

use_lot(0, key)
local ids, places, taken, came, from, last = {}, {}, 0, 0, '', ''
if FROM == 'aside' then
    local found = call('ZRANGEBYLEX', SUSPENDED, LAST == '' and '-' or '(' .. LAST, '+', 'LIMIT', 0, MOST)
    for i, entry in ipairs(found) do
        local id = match(entry, '^[^%z]*%z%d+%z(.*)$')
        local since = match(call('HGET', PAYLOADS, id) or '', THROTTLED_AT)
        ids[i], places[i] = since and tonumber(since) <= UNTIL and id or '', entry
    end
    if #found == MOST then from, last = 'aside', found[#found] end
elseif MOST > 0 then
    local before = tonumber(FROM) or 0
    local found = parked_by(PARKED, UNTIL == 0 and now or UNTIL, before, MOST)
    for i = 1, #found, 2 do
        local place = tonumber(found[i + 1])
        if place > before or found[i] > LAST then
            ids[#ids + 1], places[#ids + 1] = found[i], place
        end
    end
    if #found == 2 * MOST then from, last = int(found[#found]), found[#found - 1] end
    if from ~= '' and #ids == 0 then from, last = int(before + 1), '' end
    if from == '' and call('EXISTS', SUSPENDED) == 1 then from = 'aside' end
else
    for i = FIRST_ID, #ARGV do ids[#ids + 1] = ARGV[i] end
end

for i, id in ipairs(ids) do
    if bytes >= BYTES then
        if FROM == 'aside' then
            from, last = 'aside', places[i - 1]
        elseif MOST > 0 then
            from, last = int(places[i - 1]), ids[i - 1]
        end
        break
    end
    came = i
    if is_parked(id) then
        taken = taken + 1
        return_task(id, 0)
        if PURGE then
            call('ZREM', IN_FLIGHT, id)
            call('HDEL', PAYLOADS, id)
        end
    end
end
if is_empty() then
    end_lot()
elseif taken > 0 then
    call('ZADD', DUE_LOTS, 'XX', 'LT', int(now), bucket) -- the next one may have its turn sooner
end
return {int(now), came, taken, from, last, unpack(PURGE and {} or out)}
