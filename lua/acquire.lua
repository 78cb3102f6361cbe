-- acquire: take the permits of one request from all of its limits in one atomic step, or from none.
--
-- Two passes. The first computes when each limit could let the request go, and writes nothing. The second takes the permits of all
-- limits at the latest of these times; or, if that is too far away, proposes one slot: the time at which the request should ask again.
--
-- Source: generic cell rate algorithm (ITU-T I.371) and its peers, see algorithms/.
-- KEYS   four per limit, see include/read_limits.lua
-- ARGV   1  id        text; names the request, so that it finds its slot again; '' for none
--        2  horizon   us; a permit may be taken that far ahead: the caller then waits for its time; below 0: ask for a slot only
--        3  claim     us >= 0; a refused request with an id keeps a slot that lies no further ahead than that
--        4+ six per limit, see include/read_limits.lua; then, if the lease has an id of its own, that one: see include/prelude.lua
-- Reply  see include/reply.lua
-- Writes allowed: each limit's state, TTL until it is full again.
--        refused: the slots of each limit, TTL until a second after the last slot.
local id, HORIZON_US, CLAIM_US = ARGV[1], ARGV[2] + 0, ARGV[3] + 0
local NUMBER = #KEYS / 4 -- of limits
local FIRST_LIMIT = 4
local CORRECTS = false -- see include/algorithms.lua
--!include prelude.lua
--!include now.lua
lease_id = ARGV[FIRST_LIMIT + 6 * NUMBER]
--!include acquire_all_or_none.lua
