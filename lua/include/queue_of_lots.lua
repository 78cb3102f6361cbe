-- A few lots of one limit are looked after at once; many are looked after one after the other.
--
-- Uses LOTS, see lot.lua.
-- Gives FEW, how many are looked after at once; EACH_US, for each lot where they are more; span_of_lots(), us that all of them
-- take together.
local FEW = 250
local EACH_US = 2000

local function span_of_lots()
    local number = call('ZCARD', LOTS)
    return number > FEW and number * EACH_US or 0
end
