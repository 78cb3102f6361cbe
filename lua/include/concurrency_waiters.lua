-- Requests that wait for a place: lines of workers, and callers that ask from time to time. When a place may be free a line is notified: its
-- worker asks then, and need not ask all the time. For a caller a place is held until it asks. Either does not wait any more until
-- it has asked, and was refused, once more.
--
-- leases key: member \1 <waiter> <blank> <member> -> minus the us of the turn that the request has had first: a late request has another
-- one by then. Of a line it is the first request that waits. The last part is the member of the lease that it waits for, see lease_sizes.lua.
-- A waiter is
--   <worker> . <line>   what is published is <line>; a worker whose name begins with c gets it from another node of a cluster, and
--                       then it is not known whether that worker is there
--   @                   of a caller
--
-- Uses places_of and add_places, see lease_sizes.lua. Gives no_more_waiting(key, waiter, id), which returns the us of its first turn, nil: it did not
-- wait; note_waiting(key, waiter, id, turn); let_in(key, most, before, own, holds, asks): in the order of their turns as many as wait for `most`
-- places are notified, or have their places held, if `holds`: then `most` are free; a caller that waits for more keeps its turn, and the
-- free places as well if they are set aside for it (see concurrency.lua); those that are before `before` us, nil: all; but for `own`.
-- `asks`: the request that asks now. Where it waited first in another line it has left that worker: that line is notified, as others may wait
-- there, and no place is kept. Returns for how many places lines were notified.
local PASSED_BY = 16 -- lines whose workers are gone, in one script; the next one goes on with them
local HELD_US = 1000000 -- a caller asks sooner: see limiter/blocking_acquire.py

local function no_more_waiting(key, waiter, id)
    local member = '\1' .. waiter .. ' ' .. id
    local turn = tonumber(call('ZSCORE', key, member))
    if turn then call('ZREM', key, member) end
    return turn and -turn
end

local function note_waiting(key, waiter, id, turn)
    call('ZADD', key, int(-turn), '\1' .. waiter .. ' ' .. id)
    local lasts = turn - now + 1000000
    if call('PTTL', key) * 1000 < lasts then call('PEXPIRE', key, int(ceil(lasts / 1000))) end
end

local function let_in(key, most, before, own, holds, asks)
    local from = before and '(' .. int(-before) or '-inf'
    local found = most > 0 and call('ZRANGE', key, '-1', from, 'BYSCORE', 'REV', 'LIMIT', 0, int(most + PASSED_BY)) or {}
    local notified = 0
    for _, member in ipairs(found) do
        local worker, line = match(member, '^\1([cs]%x+)%.(%d+) ')
        local id = holds and match(member, '^\1@ (.+)$')
        local places = places_of(member)
        if most <= 0 then break end
        if holds and places > most then
            local heavy = match(member, '^\1@ (.+)%z') -- a caller of several places, with a mark: see concurrency.lua
            if heavy and call('ZSCORE', key, '\2' .. int(places) .. ' ' .. heavy) then break end
        elseif id or worker and worker .. '.' .. line ~= own then
            call('ZREM', key, member)
            if id then
                most = most - places
                if call('ZADD', key, int(now + HELD_US), id) == 1 then add_places(key, places - 1) end
                if call('PTTL', key) * 1000 < HELD_US then call('PEXPIRE', key, int(HELD_US / 1000)) end
            else
                local reached = redis.pcall('PUBLISH', (match(key, '^.-:v%d+:') or '') .. 'wake:' .. worker, line)
                local receives = type(reached) == 'number' and (reached > 0 or match(worker, '^c'))
                if receives and match(member, ' (.+)$') ~= asks then most, notified = most - places, notified + places end
            end
        end
    end
    return notified
end
