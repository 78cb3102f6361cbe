-- arrive: copies of tasks have come from the broker; may they run?
--
-- KEYS   see include/lot.lua
-- ARGV   pairs of an id and the number of its copy, 0 for a user's own that was delivered once more
-- Reply  for each 1: yes; 0: no, another copy may, or the task is parked
-- Writes the lot: whoever has come was published
--!include prelude.lua
--!include lot.lua

use_lot(0, '')

local may = {}
for i = 1, #ARGV, 2 do
    local id, copy = ARGV[i], ARGV[i + 1]
    local chosen, newest, several = copies(id)
    local inside = copy == '0' and call('HEXISTS', MESSAGES, id) == 1 or is_parked(id)
    if chosen == '-' and not inside then
        note_copies(id, copy, newest, several)
        chosen = copy
    end
    may[#may + 1] = (inside or chosen and chosen ~= copy) and 0 or 1
    if may[#may] == 1 and several then -- whichever came first has all of them
        call('HDEL', MESSAGES, id)
        call('ZREM', LEAVING, id)
    elseif may[#may] == 1 then
        at_broker(id, copy)
    end
end
return may
