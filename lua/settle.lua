-- settle: correct what a granted request was charged to what it really cost, either way. Once for each id.
--
-- KEYS   four per limit, see include/read_limits.lua; then one per limit: its ids, see reserve.lua; then one per limit: what was
--        touched, see include/mark_for_recheck.lua
-- ARGV   1  id        text, not empty: names the request
--        2  at        us: when its permits were good, from the reply that granted them
--        3+ six per limit, see include/read_limits.lua; cost is what was charged
--        then one per limit: what it should have been, permits, whole, >= 0
--        then one per limit: key of its bucket, text
-- Reply  1 if it was corrected now, 0 if it had been before, or was cancelled and its id reserved again
-- Writes each limit's state; ids: see include/idempotency.lua; TTL an hour after the last, which is how long an id is known.
local id = ARGV[1]
local at = tonumber(ARGV[2])
local NUMBER = #KEYS / 6 -- of limits
local FIRST_LIMIT = 3
local IDS, TOUCHED = 4 * NUMBER, 5 * NUMBER -- where those begin, less one
local ACTUAL = FIRST_LIMIT + 6 * NUMBER - 1
local BUCKETS = ACTUAL + NUMBER
local CORRECTS = true -- see include/algorithms.lua
--!include prelude.lua
--!include now.lua
--!include read_limits.lua
--!include load_line_functions.lua
--!include idempotency.lua
--!include mark_for_recheck.lua

-- The reservation that this id names now may be another one than the caller means: a permit that was good before it is not of it.
-- (A permit may be good after it: what several nodes of a cluster have granted is good when the last of it is.)
local function is_of_another(ids)
    local reserved = call('ZSCORE', ids, member_of(id))
    return reserved and at < tonumber(reserved)
end

local corrected = 0
for i = 1, #limits do
    local limit = limits[i]
    if not call('ZSCORE', KEYS[IDS + i], settled(id)) and not is_of_another(KEYS[IDS + i]) then
        corrected = 1
        local more = ARGV[ACTUAL + i] - limit.cost
        look(limit, now, '')
        if more > 0 then
            limit.algorithm.charge(limit, now, more)
            limit.algorithm.write(limit, now)
        elseif more < 0 then
            if limit.algorithm.give_back(limit, now, at, -more) ~= false then limit.algorithm.write(limit, now) end
            touch(KEYS[TOUCHED + i], ARGV[BUCKETS + i])
        end
        remember(KEYS[IDS + i], settled(id), now) -- when it is done: a script that fails leaves what it has written
    end
end
return corrected
