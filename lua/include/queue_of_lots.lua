-- How many lots of one limit are looked after at once, and how long it takes where they are more.
--
-- Uses LOTS, see lot.lua.
local FEW = 250
local EACH_US = 2000

local function span_of_lots()
    local number = call('ZCARD', LOTS)
    return number > FEW and number * EACH_US or 0
end
