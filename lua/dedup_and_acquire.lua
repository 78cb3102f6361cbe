-- dedup_and_acquire: copies of tasks have arrived, and some of them acquire their permits: dedup and acquire_next in one step.
--
-- The script decides first which copies may run: a copy that may not run takes no permit.
-- KEYS   as acquire; then for each parking lot the keys of include/lot.lua
-- ARGV   1  number    of limits
--        2  horizon   as acquire
--        3  claim     as acquire
--        4  asking    number of requests that acquire
--        5+           six per limit, as acquire; for each request that acquires its id, and the index, from 1, of its copy in the list
--                     below, 0: it is not in the list; then for each parking lot, as dedup: number of copies, and two for each of them
-- Reply  for each request that acquires, up to the first that has neither permits nor a slot, the reply of acquire; 0: it may not run.
--        Then for each copy the reply of dedup
-- Writes as acquire and dedup
local HORIZON_US, CLAIM_US = ARGV[2] + 0, ARGV[3] + 0
local NUMBER, ASKING = tonumber(ARGV[1]), tonumber(ARGV[4])
local FIRST_LIMIT = 5
local CORRECTS = false -- see include/algorithms.lua
local FIRST_ASKING = FIRST_LIMIT + 6 * NUMBER
local FIRST_LOT = FIRST_ASKING + 2 * ASKING
--!include prelude.lua
--!include now.lua
--!include goes_on.lua
--!include lot.lua
--!include arrive_one.lua

local function acquire(id)
--!include acquire_one.lua
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
