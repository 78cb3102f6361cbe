-- Returns tasks from a parking lot: the caller of the script publishes their messages. A task counts as published when the caller
-- confirms it (confirm_published.lua), or when the message arrives; until then it is `in_flight`.
--
-- Uses AGAIN_US, after which a task is returned once more; a parking lot, see lot.lua: PARKED, PAYLOADS, IN_FLIGHT, ACK_UNCONFIRMED,
-- VALID_COPY, EXPIRING, TASK_INDEX, UNIQUE_IDS, SUSPENDED, SHARES, copies, suspended_entry, count_cost, place_of, shares; COST, COPY, SHARE, UNIQUE,
-- place_in of task_record.lua; note_for_a_while of assign_copy_number.lua.
-- Gives return_task(id, wait, known, message): `wait`, us until its turn; `known`, the caller removes the task from `shares`, unless the
-- result is false: then the task was not parked, and was not returned; `message`, its value in `payloads`, if the caller has read
-- it; out, of each returned task its id, us until its turn, its message; bytes, the length of all these messages.
--!include assign_copy_number.lua
local out, bytes = {}, 0

local function return_task(id, wait, known, message)
    message = message or call('HGET', PAYLOADS, id)
    local was_here = call('ZREM', PARKED, id) == 1
    if known and not was_here then return false end
    call('ZREM', EXPIRING, id)
    if not message then return end
    if not was_here then was_here = call('ZREM', SUSPENDED, suspended_entry(id, message)) == 1 end
    if was_here then count_cost(match(message, COST) or 0, -1) end
    if shares and not known then call('ZREM', SHARES, shares.entry(match(message, SHARE) or '', place_in(message), id)) end
    local unique = string.sub(match(message, UNIQUE) or '', 2)
    if unique ~= '' and call('HGET', UNIQUE_IDS, unique) == id then call('HDEL', UNIQUE_IDS, unique) end
    local place = place_of(id, message)
    if place then call('ZREM', TASK_INDEX, place) end
    call('ZADD', IN_FLIGHT, int(now + AGAIN_US), id)
    local unacked = call('HGET', ACK_UNCONFIRMED, id)
    if unacked then
        call('HDEL', ACK_UNCONFIRMED, id)
        local copy = match(message, COPY) or '0'
        local _, newest, tokens = copies(id)
        note_for_a_while(id, copy, max(copy, newest or 0), (tokens or '') .. string.sub(unacked, tokens and 2 or 1))
    end
    out[#out + 1] = id
    out[#out + 1] = int(wait)
    out[#out + 1] = message
    bytes = bytes + #message
    return true
end
