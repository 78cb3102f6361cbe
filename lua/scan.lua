-- scan: which tasks of a lot may be these, of those that are not in `where`? An older version has parked them. In steps.
--
-- KEYS   see include/lot.lua
-- ARGV   1  from, 2 to: which of the tasks are looked at, counted from 0 in their order
--        3  bytes     >= 1: no more are looked at when their messages are that long
--        4+           ids of tasks, as they stand in a message
-- Reply  how many were looked at; for each that may be one of these: its id, 0, its message
-- Writes nothing
local from, to, BYTES, FIRST_TASK = ARGV[1], ARGV[2], tonumber(ARGV[3]), 4
--!include prelude.lua
--!include now.lua
--!include lot.lua
--!include ids_of_lot.lua

use_lot(0, '')
local found, bytes, looked = {}, 0, 0
for i, id in ipairs(ids_of_lot(PARKED, ASIDE, from, to)) do
    if bytes >= BYTES then break end
    looked = i
    local message = call('HGET', MESSAGES, id) or ''
    bytes = bytes + #message
    local place, escaped = place_of(id, message)
    if escaped and place and not call('ZSCORE', WHERE, place) then place = nil end
    for j = FIRST_TASK, place and 0 or #ARGV do
        if string.find(message, ARGV[j], 1, true) then
            table.insert(found, id)
            table.insert(found, '0')
            table.insert(found, message)
            break
        end
    end
end
return {looked, unpack(found)}
