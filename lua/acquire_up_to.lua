-- acquire_up_to: take as many permits as can be had now, the same number of each limit.
--
-- The number is found by trying: one permit, then as many as all limits have left, then between these. What is tried writes nothing.
-- KEYS   four per limit, see include/read_limits.lua
-- ARGV   1  id      text; names the leases; '' for none
--        2  most    permits >= 1
--        3+ six per limit, see include/read_limits.lua; their cost is not used
-- Reply  see include/reply.lua, and one number more: how many permits were taken of each limit; 0: not even one could be had
-- Writes each limit's state, as acquire; a request that is refused keeps no slot
local id, MOST = ARGV[1], ARGV[2] + 0
local NUMBER = #KEYS / 4 -- of limits
local FIRST_LIMIT = 3
local HORIZON_US = 0
local CORRECTS = false -- see include/algorithms.lua
--!include prelude.lua
--!include now.lua

-- Takes so many permits, or only says how many there may be. nil: there are fewer. A reply: there is none, or they are taken.
local function try(permits, takes)
--!include read_limits.lua
    for i = 1, NUMBER do
        if not limits[i].in_shadow then limits[i].cost = permits end
    end
    local soonest, in_line, latest = now, '', now
--!include check_all_limits.lua
--!include reply.lua
    if not allowed then
        if permits > 1 then return nil end
--!include refuse_with_slot.lua
    end
    if takes then
        for i = 1, NUMBER do limits[i].algorithm.commit(limits[i], now, id, joint) end
        return reply(1, joint, 0, 0)
    end
    local left = MOST
    for i = 1, NUMBER do
        if not limits[i].in_shadow then left = min(left, (limits[i].algorithm.state(limits[i], now))) end
    end
    return max(permits, left)
end

local there = try(1)
if type(there) == 'string' then return there .. ' 0' end
if type(there) ~= 'number' then return there end -- an error
local permits, most, number = 1, there, there
while permits < most do
    if type(try(number)) == 'number' then permits = number else most = number - 1 end
    number = ceil((permits + most) / 2)
end
return try(permits, true) .. ' ' .. int(permits)
