-- acquire: take the permits of one request from all of its limits in one atomic step, or from none.
--
-- Source: generic cell rate algorithm (ITU-T I.371) and its peers, see include/<algorithm>.lua.
-- KEYS   four per limit, see include/request.lua
-- ARGV   1  id        text; names the request, so that it finds its slot again; '' for none
--        2  horizon   us >= 0; a permit may be taken that far ahead: the caller then waits for its time
--        3  claim     us >= 0; a refused request with an id keeps a slot that lies no further ahead than that
--        4+ six per limit, see include/request.lua
-- Reply  see include/reply.lua
-- Writes allowed: each limit's state, TTL until it is full again.
--        refused: the slots of each limit, TTL until a second after the last slot.
local id = ARGV[1]
local NUMBER = #KEYS / 4 -- of limits
local FIRST_LIMIT = 4
local CORRECTS = false -- see include/algorithms.lua
--!include prelude.lua
--!include now.lua
--!include usual.lua
--!include algorithms.lua
--!include request.lua
--!include check.lua
--!include slots.lua
--!include reply.lua

-- Returning requests go before newcomers: who finds others waiting ahead joins the line, even if a permit is there.
if not behind and joint <= now + ARGV[2] and (NUMBER == 1 or fits(ARGV[3])) then
    for i = 1, #limits do
        limits[i].algorithm.commit(limits[i], now, id, joint)
    end
    return reply(1, joint, joint - now, 0)
end

-- A horizon in the past asks for a slot and no permit. None is needed where a permit can be had.
if binding == 0 then return reply(0, now, 0, 0) end

local slot, full
if NUMBER > 1 then
    slot, full = line_up(id, now + ARGV[3])
else
    slot, full = limits[1].algorithm.reserve(limits[1], now, id, joint, now + ARGV[3])
end
for i = 1, #limits do
    limits[i].algorithm.refuse(limits[i], now)
end
return reply(full and -1 or 0, now, max(1, slot - now), binding)
