-- peek: what would `acquire` answer at this moment? Takes nothing, reserves nothing.
--
-- KEYS   four per limit, see include/read_limits.lua
-- ARGV   1  id        text; asks on behalf of that waiting request; '' for a newcomer
--        2+ six per limit, see include/read_limits.lua; then the id of the lease, as acquire
-- Reply  see include/reply.lua
-- Writes nothing
local id = ARGV[1]
local NUMBER = #KEYS / 4 -- of limits
local FIRST_LIMIT = 2
local CORRECTS = false -- see include/algorithms.lua
--!include prelude.lua
--!include now.lua
--!include read_only.lua
lease_id = ARGV[FIRST_LIMIT + 6 * NUMBER]
local soonest, in_line, latest, HORIZON_US = now, '', now, 0
--!include read_limits.lua
--!include check_all_limits.lua
--!include reply.lua

if allowed then return reply(1, now, 0, 0) end
--!include refuse_with_slot.lua
