-- Lets parked tasks out. They are taken for published only when that is said (published.lua), or when one arrives.
--
-- Uses AGAIN_US, after which one is published once more; MEMORY_US, for which it is remembered that there may be two.
-- Leaves `out`: for each its id, us until its turn, its message; and `bytes`, of all messages.
local out, bytes = {}, 0

local function note_for_a_while(id, chosen, newest, several)
    note_copies(id, chosen, newest, several)
    call('PEXPIRE', TWICE, int(ceil(MEMORY_US / 1000)))
end

local function leave(id, wait)
    local message = call('HGET', MESSAGES, id)
    local was_here = call('ZREM', PARKED, id) == 1
    call('ZREM', EXPIRING, id)
    if not message then return end
    if not was_here then was_here = no_more_aside(id, match(message, '^%d+ %d+ (%d+)')) end
    if was_here then count_cost(match(message, '^%d+'), -1) end
    local place = place_of(id, message)
    if place then call('ZREM', WHERE, place) end
    call('ZADD', LEAVING, int(now + AGAIN_US), id)
    if call('SREM', UNACKED, id) == 1 then
        local copy = match(message, '^%d+ (%d+)')
        local _, newest, several = copies(id)
        note_for_a_while(id, copy, max(copy, newest or 0), several or '0')
    end
    out[#out + 1] = id
    out[#out + 1] = int(wait)
    out[#out + 1] = message
    bytes = bytes + #message
end
