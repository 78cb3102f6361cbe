-- charge: permits were used without being acquired, as an upstream has reported: they are taken, whether they are there or not.
--
-- The limit then is in debt, and refuses until that is paid.
-- KEYS   four per limit, see include/read_limits.lua
-- ARGV   six per limit, see include/read_limits.lua; cost is how many permits were used
-- Reply  1
-- Writes each limit's state
local NUMBER = #KEYS / 4 -- of limits
local FIRST_LIMIT = 1
local CORRECTS = true -- see include/algorithms.lua
--!include prelude.lua
--!include now.lua
--!include read_limits.lua
--!include load_line_functions.lua

for i = 1, NUMBER do
    local limit = limits[i]
    local permits = limit.cost
    limit.cost = 1 -- of the request that looks
    look(limit, now, '')
    limit.algorithm.charge(limit, now, permits)
    limit.newest = max(limit.newest or 0, now + (limit.offset or 0))
    limit.algorithm.write(limit, now)
end
return 1
