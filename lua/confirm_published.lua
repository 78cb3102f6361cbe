-- confirm_published: note which returned tasks are at the broker again, and which could not be published and are returned later.
--
-- KEYS   for each parking lot the keys of include/lot.lua
-- ARGV   for each parking lot: the key of its bucket, text; numbers of published tasks, of postponed tasks and of messages that follow:
--        of each published task its id and the number of its copy;
--        of each postponed task its id and us, > 0: after which it is returned once more;
--        of each message that is acknowledged by now its task's id and its token
-- Reply  1
-- Writes the parking lots; a postponed task can be found by its id again
--!include prelude.lua
--!include now.lua
--!include lot.lua

local function postpone(id, pause)
    local message = call('ZSCORE', IN_FLIGHT, id) and call('HGET', PAYLOADS, id)
    local place = message and place_of(id, message)
    if message then call('ZADD', IN_FLIGHT, int(now + pause), id) end
    if place then call('ZADD', TASK_INDEX, 0, place) end
end

local at = 1
for lot = 0, #KEYS - 1, LOT_KEYS do
    use_lot(lot, ARGV[at])
    local published = at + 4
    local postponed = published + 2 * ARGV[at + 1]
    local messages = postponed + 2 * ARGV[at + 2]
    at = messages + 2 * ARGV[at + 3]
    for i = published, postponed - 1, 2 do at_broker(ARGV[i], ARGV[i + 1]) end
    for i = postponed, messages - 1, 2 do postpone(ARGV[i], ARGV[i + 1]) end
    acknowledged(messages, at - 1)
    if is_empty() then end_lot() end
end
return 1
