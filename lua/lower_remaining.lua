-- lower_remaining: an upstream has fewer permits left than the limit: the difference is taken.
--
-- Never looser: each request that is granted afterwards would be granted without this, too. So nothing is taken of a limit whose
-- periods begin with their first use (refill = "interval", align = "first"), where what is taken now begins a period earlier than the
-- next request would; nor under warm-up, where it warms up.
--
-- KEYS   four, see include/read_limits.lua
-- ARGV   1  most  permits, whole, >= 0: that are left at the most
--        2+ six, see include/read_limits.lua
-- Reply  permits that were taken
-- Writes the limit's state
local most = tonumber(ARGV[1])
local NUMBER = 1 -- of limits
local FIRST_LIMIT = 2
local CORRECTS = true -- see include/algorithms.lua
--!include prelude.lua
--!include now.lua
--!include read_limits.lua
--!include load_line_functions.lua

local limit = limits[1]
local is_clocked = limit.method == 'fixed_window' and limit.extra == 0
local lowers = is_clocked or limit.method == 'sliding_window' or limit.method == 'sliding_log'
    or limit.method == 'token_bucket' or limit.method == 'leaky_bucket'
if limit.in_shadow or not lowers then return 0 end
look(limit, now, '')
local taken = max(0, limit.algorithm.state(limit, now) - most)
if taken > 0 then
    limit.algorithm.charge(limit, now, taken)
    limit.newest = max(limit.newest or 0, now + (limit.offset or 0))
    limit.algorithm.write(limit, now)
end
return taken
