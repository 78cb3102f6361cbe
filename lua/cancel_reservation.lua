-- cancel_reservation: give back the permits of a reservation, as far as the limit is not exceeded by that. Once for each id.
--
-- KEYS   four per limit, see include/read_limits.lua; then one per limit: its ids, see reserve.lua; then one per limit: what was
--        touched, see include/mark_for_recheck.lua
-- ARGV   1  id        text: names the reservation
--        2+ six per limit, see include/read_limits.lua; then one per limit: key of its bucket, text
-- Reply  1 if there was such a reservation, else 0
-- Writes each limit's state, and its ids.
local id = ARGV[1]
local NUMBER = #KEYS / 6 -- of limits
local FIRST_LIMIT = 2
local IDS, TOUCHED, BUCKETS = 4 * NUMBER, 5 * NUMBER, FIRST_LIMIT + 6 * NUMBER - 1 -- where those begin, less one
local CORRECTS = true -- see include/algorithms.lua
--!include prelude.lua
--!include now.lua
--!include read_limits.lua
--!include load_line_functions.lua
--!include idempotency.lua
--!include mark_for_recheck.lua

local found = 0
for i = 1, #limits do
    local limit = limits[i]
    local ids = KEYS[IDS + i]
    local at = tonumber(call('ZSCORE', ids, member_of(id)))
    if at then
        found = 1
        limit.cost = max(1, (tonumber(call('ZSCORE', ids, cost_of(id))) or 0) - at) -- what it was when it was reserved, whatever the caller says
        -- A reservation that was settled has given back what it could; one that is cancelled cannot be settled afterwards.
        if not call('ZSCORE', ids, settled(id)) then
            look(limit, now, '')
            if limit.algorithm.give_back(limit, now, at, limit.cost) ~= false then limit.algorithm.write(limit, now) end
            touch(KEYS[TOUCHED + i], ARGV[BUCKETS + i])
            remember(ids, settled(id), now) -- when it is done: a script that fails leaves what it has written
        end
        call('ZREM', ids, member_of(id), cost_of(id))
    end
end
return found
