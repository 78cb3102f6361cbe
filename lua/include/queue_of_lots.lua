-- How many lots of one limit are looked after at once, and how long it takes where they are more.
--
-- Uses LOTS and CODE, see lot.lua.
local FEW = 250
local EACH_US = 2000

local function span_of_lots()
    local number = call('ZCARD', LOTS)
    return number > FEW and number * EACH_US or 0
end

-- Whether whoever looked after a lot of this limit last had the same limit in its code. From now on it is `code`.
local CODE_MS = 2592000000 -- 30 days
local function same_code(code)
    if call('GET', CODE) == code then return true end
    call('SET', CODE, code, 'PX', int(CODE_MS))
    return false
end
