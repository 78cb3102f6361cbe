-- cancel: give back the permits of a reservation, as far as that lets nobody exceed the limit. Once for each id.
--
-- KEYS   two per limit, see include/request.lua; then one per limit: its reservations
-- ARGV   1  id        text: names the reservation
--        2+ six per limit, see include/request.lua
-- Reply  1 if there was such a reservation, else 0
-- Writes each limit's state, and takes the id out of the reservations.
local id = ARGV[1]
local NUMBER = #KEYS / 3 -- of limits
local FIRST_LIMIT = 2
local RESERVATIONS = 2 * NUMBER
--!include prelude.lua
--!include now.lua
--!include algorithms.lua
--!include request.lua

local found = 0
for i = 1, #limits do
    local limit = limits[i]
    local at = tonumber(call('ZSCORE', KEYS[RESERVATIONS + i], id))
    if at then
        found = 1
        call('ZREM', KEYS[RESERVATIONS + i], id)
        limit.algorithm.check(limit, now, '')
        limit.algorithm.give_back(limit, now, at, limit.cost)
    end
end
return found
