-- Whether whoever looked after a lot of this limit last had the same limit in its code. From now on it is `code`. Uses CODE, see lot.lua.
local CODE_MS = 2592000000 -- 30 days
local function same_code(code)
    local known = call('GET', CODE)
    if known ~= code then call('SET', CODE, code, 'PX', int(CODE_MS)) end
    return not known or known == code
end
