-- peek: what would `acquire` answer at this moment? Takes nothing, reserves nothing, writes nothing.
--
-- KEYS   four per limit, see include/request.lua
-- ARGV   1  id        text; asks on behalf of that waiting request; '' for a newcomer
--        2+ six per limit, see include/request.lua
-- Reply  see include/reply.lua
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

if binding == 0 then return reply(1, now, 0, 0) end
local slot, full
if NUMBER > 1 then
    slot, full = line_up('', now)
else
    slot, full = limits[1].algorithm.reserve(limits[1], now, '', joint, now)
end
return reply(full and -1 or 0, now, max(1, slot - now), binding)
