-- limit_levels: the level of each of several limits, for displays. Writes nothing.
--
-- KEYS   four per limit, see include/read_limits.lua
-- ARGV   six per limit, see include/read_limits.lua
-- Reply  for each limit: us of this clock; permits left; us until it is full; us until one more permit can be had; requests that have a
--        slot; the size, the count and the period in force; what is stored for the limit, and for the key,
--        see include/config_format.lua, '' if nothing is
local NUMBER = #KEYS / 4 -- of limits
local FIRST_LIMIT = 1
local id = ''
local CORRECTS = false -- see include/algorithms.lua
--!include prelude.lua
--!include now.lua
--!include read_only.lua
--!include read_limits.lua
--!include load_line_functions.lua

local answer = {}
for i = 1, NUMBER do
    local limit = limits[i]
    limit.cost = min(limit.cost, limit.burst) -- what is stored may be smaller
    look(limit, now, id)
    local left, full = limit.algorithm.state(limit, now)
    local wait = max(limit.grant, limit.paused or 0) - now
    answer[i] = {int(now), left, full, int(max(0, wait)), call('ZCOUNT', limit.slots_key, 0, '+inf'), limit.burst, limit.count,
        limit.period, got[3 * i - 1] or '', got[3 * i] or ''}
end
return answer
