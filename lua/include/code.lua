-- Whether whoever looked after a lot of this limit last had the same limit in its code. From now on it is `code`. Uses CODE, see lot.lua.
local CODE_MS = 2592000000 -- 30 days
local function same_code(code)
    if call('GET', CODE) == code then return true end
    call('SET', CODE, code, 'PX', int(CODE_MS))
    return false
end
