-- peek: what would `acquire` answer at this moment? Takes nothing, reserves nothing.
--
-- KEYS   four per limit, see include/request.lua
-- ARGV   1  id        text; asks on behalf of that waiting request; '' for a newcomer
--        2+ six per limit, see include/request.lua
-- Reply  see include/reply.lua
-- Writes the states whose rule has changed since they were written, or whose clock has stepped back: once, or for whoever only
--        looks it would have happened just now, each time
local id = ARGV[1]
local NUMBER = #KEYS / 4 -- of limits
local FIRST_LIMIT = 2
local CORRECTS = false -- see include/algorithms.lua
--!include prelude.lua
--!include now.lua
--!include algorithms.lua
--!include request.lua
--!include check.lua
--!include slots.lua
--!include reply.lua

local slot, full
if binding == 0 then
    slot = now
elseif NUMBER > 1 then
    slot, full = line_up('', now)
else
    slot, full = limits[1].algorithm.reserve(limits[1], now, '', joint, now)
end
for i = 1, #limits do
    limits[i].algorithm.refuse(limits[i], now)
end
if binding == 0 then return reply(1, now, 0, 0) end
return reply(full and -1 or 0, now, max(1, slot - now), binding)
