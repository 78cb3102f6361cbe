-- park: put messages of throttled tasks into the parking lots of the limits that refused them, in the given order. Idempotent by id.
--
-- KEYS   for each parking lot the keys of include/lot.lua
-- ARGV   1  behind    1: park only behind parked tasks; 0: also in an empty parking lot
--        2  most      >= 0: park only if the parked tasks cost fewer permits; -1: no bound
--        3  memory    us, > 0: for how long a call may come late
--        4+           for each parking lot: the key of its bucket, text; us until the first poll of the parking lot if it is empty now;
--                     number of messages that follow; number of values after them;
--                     for each message ten:
--                     since    us: when the task was first throttled; 0: now, and the task goes behind tasks of equal priority
--                     expires  us; 0: never
--                     id       text
--                     cost     permits
--                     copy     least number of the copy when the task is returned
--                     token    names this delivery of the message
--                     attempt  0; more: the replies to earlier calls for this delivery were lost, and they may come late
--                     weight   of its share, in the code; '': the limit is not fair
--                     bound    >= 1: park it only if fewer tasks are parked, unless it was parked before; '': no bound
--                     record   from the field `order` on, see include/task_record.lua, with the message
--                     and pairs of an id and a token: of messages that were parked before, and are acknowledged by now
-- Reply  for each message two values, its outcome and what belongs to it:
--        parked    cost in permits of the tasks before it. If less important tasks are parked, too: the number of tasks before it times
--                  the average cost of a task. If the limit is fair: the cost of its share's tasks before it, times the weight of all
--                  shares, divided by the weight of its share; at most the cost of all tasks.
--                  The same if an earlier call for this delivery has parked it, also if the task was returned since
--        empty     0: no task is parked, or a later attempt was made before
--        full      cost in permits of the tasks before it, which is `most` or more
--        no_room   the same, and as many tasks are parked as its bound says. A task that waits in the place of another one needs no room
--        replaced  the id of another task, which waits in its place
--
-- Of duplicates one stays, at the place of the one that was first throttled. If the new message stays, the message of the other task is
-- marked with the id of the new task (`survivor`). The other task is returned like an expired task, and the worker that receives it ends it.
-- Writes the parking lots; no time to live: they hold work
local BEHIND, MOST, MEMORY_US, FIELDS = ARGV[1] == '1', tonumber(ARGV[2]), tonumber(ARGV[3]), 10
--!include prelude.lua
--!include now.lua
--!include lot.lua
--!fair shares.lua
--!fair add_task_to_share.lua
--!include wake_idle_workers.lua

local twice -- whether some tasks of the parking lot in use have several messages
local is_due, is_new -- whether the parking lot is due at once; whether it was empty

local function park(since, expires, id, cost, copy, token, attempt, weight, bound, sent)
    local order, share, unique, new_survivor = match(sent, '^(%-?%d+) %d* ([^ ]*) ([^ ]*) [^ ]* [^ ]* ([^ ]*) ')
    local entry, is_there, again = nil, nil, copy > 1
    if not shares or weight == '' then share = nil end
    local has_since, before = since ~= 0, order * ORDER_US
    local parked = call('ZCARD', PARKED)
    local number = parked + call('ZCARD', SUSPENDED)
    local ahead = number
    if ahead == 0 then call('HDEL', COSTS, bucket) else ahead = cost_of(ahead) end
    local chosen, newest, tokens
    if twice or attempt > 0 then
        local attempts = id .. '\0' .. token
        if tonumber(call('HGET', VALID_COPY, attempts) or 0) > attempt then return 'empty', 0 end
        if attempt > 0 then
            call('HDEL', VALID_COPY, attempts) -- the first write takes no memory: a store that is full does not refuse it
            call('HSET', VALID_COPY, attempts, int(attempt))
            call('PEXPIRE', VALID_COPY, int(ceil(MEMORY_US / 1000)))
        end
        twice, chosen, newest, tokens = true, copies(id)
    end
    if tokens and without(tokens, token) then return 'parked', ahead end -- an earlier call has parked it, and it was returned since
    local kept = call('HGET', PAYLOADS, id)
    if kept then
        if tonumber(match(kept, COPY) or 0) >= copy or is_parked(id) then
            local unacked = call('HGET', ACK_UNCONFIRMED, id)
            if not without(unacked, token) then call('HSET', ACK_UNCONFIRMED, id, (unacked or ',') .. token .. ',') end
            return 'parked', ahead
        end
        call('ZREM', IN_FLIGHT, id) -- the returned task was parked in another store or under other keys since, and returned from there
    end
    if BEHIND and ahead == 0 then return 'empty', 0 end

    local last = parked > 0 and tonumber(call('ZRANGE', PARKED, -1, -1, 'WITHSCORES')[2]) or 0
    if not has_since then
        local equal = last
        if last - before > now + STEP_US then -- it is less important
            local rank = call('ZCOUNT', PARKED, '-inf', int(now + STEP_US + before))
            equal = rank > 0 and call('ZRANGE', PARKED, rank - 1, rank - 1, 'WITHSCORES')[2] or 0
        end
        since = max(now, equal - before + 1)
    end
    -- The waiting duplicate, and its value in `payloads`. A task that is not unique could not end: it continues to wait.
    local other = unique ~= '' and call('HGET', UNIQUE_IDS, string.sub(unique, 2))
    local its = other and other ~= id and is_parked(other) and call('HGET', PAYLOADS, other)
    if (its and match(its, UNIQUE) or '') == '' then other = false end
    if other then
        local head, its_since, rest = match(its, '^(%d+ %d+ )(%d+)( .*)$')
        its_since = tonumber(its_since)
        if (since >= its_since) ~= (string.sub(unique, 1, 1) == 'n') then -- it stays, at the place of the earlier one
            if since < its_since and call('ZSCORE', PARKED, other) then
                local kept = head .. int(since) .. rest
                call('HSET', PAYLOADS, other, kept)
                call('ZADD', PARKED, int(place_in(kept)), other)
                if shares then
--!fair move_task_in_share.lua
                end
                is_due = true
            end
            return 'replaced', match(its, TASK) or ''
        end
        since, ahead = min(since, its_since), ahead - match(head, '^%d+')
    end
    local place = since + before
    if share then
        entry = shares.entry(share, place, id)
        ahead, is_there = shares.ahead(share, weight, entry, ahead, number)
    elseif place < last then
        local one = other and 1 or 0
        ahead = ceil(ahead * max(0, call('ZCOUNT', PARKED, '-inf', int(place)) - one) / max(1, parked - one))
    end
    if MOST ~= -1 and ahead >= MOST then return 'full', ahead end
    if bound ~= '' and not other and not again and number >= tonumber(bound) then return 'no_room', ahead end

    if chosen then -- this is the one that may run, under a number that no other has
        copy = max(copy, newest + 1)
        note_copies(id, copy, copy, tokens)
    end
    local message = format('%s %d %d ', cost, copy, since) .. sent
    local where = place_of(id, message)
    if other then -- it ends in favour of this one: the worker that gets it ends it
        local before_it, after_it = match(its, '^(' .. NUMBERS .. '[^ ]* [^ ]* )[^ ]*( .*)$')
        call('HSET', PAYLOADS, other, before_it .. new_survivor .. after_it)
        call('ZADD', EXPIRING, int(now), other)
        is_due = true
    end
    if unique ~= '' then call('HSET', UNIQUE_IDS, string.sub(unique, 2), id) end
    call('HSET', PAYLOADS, id, message)
    if where then call('ZADD', TASK_INDEX, 0, where) end
    call('ZADD', PARKED, int(place), id)
    count_cost(cost, 1)
    call('HSET', ACK_UNCONFIRMED, id, ',' .. token .. ',')
    if share and shares.join(share, weight, entry, is_there, again and cost) then is_due = true end -- the others may all be held back
    if expires ~= '0' then
        call('ZADD', EXPIRING, expires, id)
        call('ZADD', DUE_LOTS, 'XX', 'LT', expires, bucket)
    end
    if parked == 0 then
        is_new = true
    elseif place < last and call('ZRANK', PARKED, id) == 0 then
        is_due = true -- its place is before the first
    end
    return 'parked', ahead
end

local said, at = {}, 4
for lot = 0, #KEYS - 1, LOT_KEYS do
    use_lot(lot, ARGV[at])
    local later, first = tonumber(ARGV[at + 1]), at + 4
    local last = first + FIELDS * ARGV[at + 2]
    acknowledged(last, last + ARGV[at + 3] - 1)
    twice, is_due, is_new = call('EXISTS', VALID_COPY) == 1, false, false
    for i = first, last - 1, FIELDS do
        local since, expires, id, cost, copy, token, attempt, weight, bound, sent = unpack(ARGV, i, i + FIELDS - 1)
        said[#said + 1], said[#said + 2] =
            park(tonumber(since), expires, id, cost, tonumber(copy), token, tonumber(attempt), weight, bound, sent)
    end
    if is_due or is_new or not call('ZSCORE', DUE_LOTS, bucket) then -- or its place in the index is lost
        local is_first = call('EXISTS', DUE_LOTS) == 0 -- else a worker looks already
        call('ZADD', DUE_LOTS, 'LT', int(is_due and now or now + later), bucket)
        if is_first then wake(DUE_LOTS) end
    end
    at = last + ARGV[at + 3]
end
return said
