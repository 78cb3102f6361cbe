-- acquire_in_order: what acquire does, for several requests that ask the same limits, one after the other, until one has
-- neither its permits nor a slot.
--
-- Each is decided as if it had asked by itself, at the same time: what was taken for those before it is taken.
-- KEYS   as acquire
-- ARGV   as acquire, for the first of them; then the ids of the others
-- Reply  the reply of acquire for each, up to the first that has neither permits nor a slot that is kept: those behind it were not asked
-- Writes as acquire
local HORIZON_US, CLAIM_US = ARGV[2] + 0, ARGV[3] + 0
local NUMBER = #KEYS / 4 -- of limits
local FIRST_LIMIT = 4
local CORRECTS = false -- see include/algorithms.lua
local FIRST_OTHER = FIRST_LIMIT + 6 * NUMBER
local FIRST, others = ARGV[1], {unpack(ARGV, FIRST_OTHER)}
--!include prelude.lua
--!include now.lua
--!include ask_next_request.lua

local function acquire(id)
--!include acquire_all_or_none.lua
end

local said = {acquire(FIRST)}
for _, id in ipairs(others) do
    local last = said[#said]
    if type(last) ~= 'string' or not goes_on(last) then break end
    said[#said + 1] = acquire(id)
end
return type(said[1]) == 'string' and said or said[1] -- an error is of all: nothing was taken
