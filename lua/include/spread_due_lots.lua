-- A few parking lots of one limit are processed at once; many are processed one after the other.
--
-- Uses DUE_LOTS, see lot.lua.
-- Gives FEW, the number up to which parking lots are processed at once; EACH_US, the time for each of more; span_of_lots(), us that all
-- of them take together.
local FEW = 250
local EACH_US = 2000

local function span_of_lots()
    local number = call('ZCARD', DUE_LOTS)
    return number > FEW and number * EACH_US or 0
end
