-- Has the limit changed in the code since a worker looked after one of its lots last?
--
-- Uses CODE, see lot.lua.
-- Gives same_code(code): whether the worker that looked last had the same limit in its code. From now on this one is noted.
local CODE_MS = 2592000000 -- 30 days
local function same_code(code)
    local known = call('GET', CODE)
    if known ~= code then call('SET', CODE, code, 'PX', int(CODE_MS)) end
    return not known or known == code
end
