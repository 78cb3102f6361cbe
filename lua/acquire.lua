-- acquire: take the permits of one request from all of its limits in one atomic step, or from none.
--
-- Source: generic cell rate algorithm (ITU-T I.371); two times per bucket, tat and slots, see include/token_bucket.lua.
-- KEYS   two per limit, see include/request.lua
-- ARGV   1  id        text; names the request, so that it finds its slot again; '' for none
--        2  horizon   us >= 0; a permit may be taken that far ahead: the caller then waits for its time
--        3  claim     us >= 0; a refused request with an id keeps a slot that lies no further ahead than that
--        4+ five per limit, see include/request.lua
-- Reply  see include/reply.lua
-- Writes allowed: each limit's state, TTL until it is full again.
--        refused: the slots of the limit that said no, TTL until a second after the last slot.
local id = ARGV[1]
local horizon = tonumber(ARGV[2])
local claim = tonumber(ARGV[3])
local FIRST_LIMIT = 4
local algorithms = {}
local call, format, floor, max = redis.call, string.format, math.floor, math.max

--!include now.lua
--!include token_bucket.lua
--!include request.lua
--!include reply.lua

-- Returning requests go before newcomers: who finds others waiting ahead joins the line, even if a permit is there.
if joint <= now + horizon and not behind then
    for _, limit in ipairs(limits) do
        limit.algorithm.commit(limit, now, id, joint)
    end
    return reply(1, joint - now, 0)
end

-- A horizon in the past asks for a slot and no permit. None is needed where a permit can be had.
if binding == 0 then return reply(0, 0, 0) end

-- Only the limit that said no keeps a slot: a line in the others would hold up work that they could do.
local limit = limits[binding]
local slot = limit.algorithm.reserve(limit, now, id, joint, now + claim)
for _, each in ipairs(limits) do
    each.algorithm.refuse(each, now)
end
return reply(0, slot - now, binding)
