-- The parking lot of one bucket: it holds the messages of throttled tasks until their turn is near. A task is returned when it is
-- taken out of the parking lot and its message is published.
--
-- Gives use_lot(lot, key): from then on the names below are keys of the parking lot in KEYS[lot + 1] to KEYS[lot + LOT_KEYS],
-- and `bucket` is `key`, the key of its bucket.
--   1  parked          sorted set, id -> us: its place in the order, see task_record.lua
--   2  payloads        hash, id -> "<record> <message>", see task_record.lua: of tasks that are parked or leaving
--   3  in_flight       sorted set, id -> us: of returned tasks; at that time the message is published once more, unless its publishing
--                      is confirmed by then
--   4  ack_unconfirmed hash, id -> tokens: of parked tasks, the deliveries whose messages may still be at the broker
--   5  valid_copy      hash, id -> "<the copy that may run> <newest copy> <tokens>": ids of which more than one message may exist.
--                      The first part is '-' if the copy that arrives first may run. The entry is gone once the messages of all tokens are
--                      acknowledged; the token * stands for messages of which that is never known.
--                      id NUL token -> attempt: the newest attempt of this delivery to park its message, see park.lua
--   6  expiring        sorted set, id -> us at which the task expires
--   7  suspended       sorted set, "<queue> NUL <its place, 16 digits> NUL <id>" -> 0: parked tasks, too, of queues
--                      that no worker consumes. Until a worker does, they do not delay other tasks
--   8  due             sorted set, key of a bucket -> us at which a worker has to process its parking lot; one for each limit
--   9  code            string: the limit as it is in the code of the worker that last processed one of these parking lots; one for each
--                      limit. With another code that worker would have planned another time: see compare_and_note_code.lua.
--                      Where rates go by key: 'r' and a number of all of them
--   10 task_index      sorted set, "<task's id> NUL <id> NUL <key of a bucket>" -> 0: where a task is parked; one for each limit
--   11 suspended_lots  sorted set, key of a bucket -> 0: its parking lot has tasks set aside; one for each limit
--   12 costs           hash, key of a bucket -> permits that its parked tasks cost; one for each limit
--   13 unique          hash, identifier of duplicates, of which only one is to wait -> id of the one that waits, see park.lua
-- and of a fair limit
--   14 shares          sorted set, "<share> NUL <its place, 16 digits> NUL <id>" -> 0: the share of each parked task; and
--   15 turns           sorted set, share -> its tag in virtual time: see shares.lua. These two are an index of `parked`
--   16 weights         hash, share -> "<weight> <us since> <note>": weights that people have stored; see shares.lua; one for each limit of
--                      a store, for all fleets
-- Copies of a message are numbered: 0 is the user's own, each returned copy has one more than the copy before.
-- A token names one delivery of a message to a worker. A list of tokens has a comma before, between and behind them.
--
-- The names are PARKED, PAYLOADS, IN_FLIGHT, ACK_UNCONFIRMED, VALID_COPY, EXPIRING, SUSPENDED, DUE_LOTS, CODE, TASK_INDEX,
-- SUSPENDED_LOTS, COSTS, UNIQUE_IDS, SHARES, TURNS, WEIGHTS. Uses COPY, QUEUE, TASK, place_in of task_record.lua. Gives also shares, which is
-- nil except in scripts that process shares; for the parking lot in use and by a task's id: without, copies, note_copies, at_broker,
-- acknowledged, place_of, is_parked, suspended_entry, count_cost; and for the whole parking lot cost_of(number),
-- is_empty(), end_lot().
local PARKED, PAYLOADS, IN_FLIGHT, ACK_UNCONFIRMED, VALID_COPY, EXPIRING, SUSPENDED, DUE_LOTS, CODE
local TASK_INDEX, SUSPENDED_LOTS, COSTS, UNIQUE_IDS, SHARES, TURNS, WEIGHTS
local LOT_KEYS = 16
local bucket, shares
--!include task_record.lua

local function use_lot(lot, key)
    bucket = key
    PARKED, PAYLOADS, IN_FLIGHT, ACK_UNCONFIRMED, VALID_COPY, EXPIRING, SUSPENDED, DUE_LOTS, CODE,
    TASK_INDEX, SUSPENDED_LOTS, COSTS, UNIQUE_IDS, SHARES, TURNS, WEIGHTS = unpack(KEYS, lot + 1, lot + LOT_KEYS)
end

-- The other tokens of a list, ',' if there are none; nil if the token is not in it.
local function without(tokens, token)
    local from, to = string.find(tokens or '', ',' .. token .. ',', 1, true)
    return from and string.sub(tokens, 1, from) .. string.sub(tokens, to + 1)
end

-- The copy that may run, the newest copy, and the tokens of older messages; nil if only one message exists.
local function copies(id)
    return match(call('HGET', VALID_COPY, id) or '', '^(%S+) (%d+) (%S+)$')
end

local function note_copies(id, chosen, newest, tokens)
    call('HSET', VALID_COPY, id, format('%s %d %s', chosen, newest, tokens))
end

-- Notes that this copy is at the broker. A task that has arrived meanwhile and is parked again has another copy number.
local function at_broker(id, copy)
    if match(call('HGET', PAYLOADS, id) or '', COPY) == copy then
        call('HDEL', PAYLOADS, id)
        call('ZREM', IN_FLIGHT, id)
    end
end

-- Notes that messages are acknowledged: ARGV[first] to ARGV[last] are pairs of a task's id and the token of the message's delivery.
local function acknowledged(first, last)
    for i = first, last, 2 do
        local id, token = ARGV[i], ARGV[i + 1]
        local rest = without(call('HGET', ACK_UNCONFIRMED, id), token)
        if rest == ',' then
            call('HDEL', ACK_UNCONFIRMED, id)
        elseif rest then
            call('HSET', ACK_UNCONFIRMED, id, rest)
        else
            local chosen, newest, tokens = copies(id)
            rest = without(tokens, token)
            if rest == ',' then call('HDEL', VALID_COPY, id) elseif rest then note_copies(id, chosen, newest, rest) end
        end
    end
end

-- The entry of `task_index` for a task, by its value in `payloads`; nil if it has no id.
local function place_of(id, message)
    local task = match(message, TASK)
    return task and task ~= '' and task .. '\0' .. id .. '\0' .. bucket -- Lua's format ends a text at its first NUL
end

-- Deletes an empty parking lot. Entries of `task_index` without a message are deleted with the limit's last parking lot.
local function end_lot()
    call('ZREM', DUE_LOTS, bucket)
    call('ZREM', SUSPENDED_LOTS, bucket)
    call('HDEL', COSTS, bucket)
    call('UNLINK', UNIQUE_IDS, SHARES, TURNS)
    if call('EXISTS', DUE_LOTS) == 0 then call('UNLINK', TASK_INDEX) end
end

local function is_empty()
    return call('ZCARD', PARKED) + call('ZCARD', IN_FLIGHT) + call('ZCARD', SUSPENDED) == 0
end

local function is_parked(id)
    if call('ZSCORE', PARKED, id) then return true end
    return call('EXISTS', SUSPENDED) == 1 and call('HEXISTS', PAYLOADS, id) == 1 and not call('ZSCORE', IN_FLIGHT, id)
end

-- The entry of `suspended` for a task, by its value in `payloads`.
local function suspended_entry(id, message)
    return format('%s\0%016d\0%s', match(message, QUEUE) or '', place_in(message), id)
end

-- Notes that a task of that cost is parked (1), or is no longer parked (-1).
local function count_cost(cost, sign)
    if call('HINCRBY', COSTS, bucket, int(sign * cost)) <= 0 then call('HDEL', COSTS, bucket) end
end

-- Permits that all parked tasks cost; there are `number` of them.
local function cost_of(number)
    return number == 0 and 0 or max(number, call('HGET', COSTS, bucket) or 0)
end
