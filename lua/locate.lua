-- locate: find the parking lots of some limits in which these tasks are parked.
--
-- KEYS   of each limit: where, see include/lot.lua
-- ARGV   ids of tasks
-- Reply  for each limit: its entries of where for these tasks
-- Writes nothing
--!include prelude.lua
--!include now.lua

local found = {}
for i = 1, #KEYS do
    found[i] = {}
    for _, task in ipairs(call('EXISTS', KEYS[i]) == 1 and ARGV or {}) do
        for _, place in ipairs(call('ZRANGEBYLEX', KEYS[i], '[' .. task .. '\0', '(' .. task .. '\1')) do
            table.insert(found[i], place)
        end
    end
end
return found
