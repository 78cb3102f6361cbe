-- filter_copies_and_acquire: the broker has delivered copies of tasks: decide which of them may run; then some requests acquire, as acquire_in_order.
--
-- A copy that may not run takes no permit. No request need acquire: then there are no limits, and the first four arguments are 0.
-- KEYS   as acquire; then for each parking lot the keys of include/lot.lua
-- ARGV   1  number    of limits
--        2  horizon   as acquire
--        3  claim     as acquire
--        4  asking    number of requests that acquire
--        5+           six per limit, as acquire; for each request that acquires its id, and the index, from 1, of its copy in the list
--                     below, 0: it is not in the list; then for each parking lot: number of copies; for each copy the task's id and the
--                     number of the copy, 0 for a user's own message that was redelivered
-- Reply  for each request that acquires, up to the first that has neither permits nor a slot, the reply of acquire; 0: it may not run.
--        Then for each copy 1: it may run; 0: it may not, as another copy may, or the task is parked
-- Writes as acquire; the parking lots: an arrived copy was published
local HORIZON_US, CLAIM_US = ARGV[2] + 0, ARGV[3] + 0
local NUMBER, ASKING = tonumber(ARGV[1]), tonumber(ARGV[4])
local FIRST_LIMIT = 5
local CORRECTS = false -- see include/algorithms.lua
local FIRST_ASKING = FIRST_LIMIT + 6 * NUMBER
local FIRST_LOT = FIRST_ASKING + 2 * ASKING
--!include prelude.lua
--!include now.lua
--!include ask_next_request.lua
--!include lot.lua

-- Whether a copy may run. `twice`: some tasks of the parking lot in use have several copies.
local function arrive(twice, id, copy)
    local chosen, newest, tokens
    if twice then chosen, newest, tokens = copies(id) end
    local inside = copy == '0' and call('HEXISTS', PAYLOADS, id) == 1 or is_parked(id)
    if chosen == '-' and not inside then
        note_copies(id, copy, newest, tokens)
        chosen = copy
    end
    if chosen and tonumber(copy) > tonumber(newest) then -- it was parked in another store or under other keys meanwhile
        note_copies(id, copy, copy, tokens)
        chosen = copy
    end
    if inside or chosen and chosen ~= copy then return 0 end
    if chosen then -- the one that came first has all of them
        call('HDEL', PAYLOADS, id)
        call('ZREM', IN_FLIGHT, id)
    else
        at_broker(id, copy)
    end
    return 1
end

local function acquire(id)
--!include acquire_all_or_none.lua
end

local may, at = {}, FIRST_LOT
for lot = 4 * NUMBER, #KEYS - 1, LOT_KEYS do
    use_lot(lot, '')
    local twice, last = call('EXISTS', VALID_COPY) == 1, at + 2 * ARGV[at]
    for i = at + 1, last, 2 do
        may[#may + 1] = arrive(twice, ARGV[i], ARGV[i + 1])
    end
    at = last + 1
end

local said = {}
for i = FIRST_ASKING, FIRST_LOT - 1, 2 do
    local answer = may[tonumber(ARGV[i + 1])] == 0 and 0 or acquire(ARGV[i])
    if type(answer) == 'table' and answer.err then return answer end -- of all: nothing was taken
    said[#said + 1] = answer
    if type(answer) == 'string' and not goes_on(answer) then break end
end
return {said, may}
