-- Those who share a limit that is fair have their turns by weight: start-time fair queueing (Goyal, Vin, Cheng 1996).
--
-- Whose a task is, its share, is a text of letters, digits and @/.-_~+=,%# (store/keys.py escapes it), and stands in its message:
-- it ends in "share": "<share>"}, or in "share": "<share>", "order": <steps>}. Any other message ends in }}.
-- `turns` has each share that has tasks parked, and its tag: the virtual time at which the next of its tasks starts. Who has the
-- least tag is next. Virtual time is then at that tag, and the share's tag is further by what the task costs, divided by its
-- weight. A share without tasks stays until it would be next, so that it cannot save up by leaving and coming anew; who comes anew
-- begins at the present. Below all of these are, less than zero:
--   NUL        the virtual time that is reached, >= 1
--   NUL since  us: up to which change of the weights this lot has come
--   NUL from   a place of `parked`, plus one: what is before that is in the index
--   NUL held   only if some are held back
-- and from HELD on those whose weight is 0, with the number of the weights by which they were held back, see turns.lua.
-- `parked` has all tasks, and is what counts: versions before this one know no index, nor do scripts that are called for limits
-- which are not fair. An entry of a task that is not parked at its place any more is dropped when it is met; a task without an
-- entry gets one, with what it has for a share, or else ''.
-- `weights`, field NUL: "<us> <share> <us> <share> ... ", the last changes, each later than the one before.
--
-- Uses now; SHARES, TURNS, WEIGHTS, MESSAGES, LOT_KEYS, shares of lot.lua.
-- Gives shares, which is nil in scripts without this text: of(message), by what is kept in `messages`, nothing where it has none;
-- entry(share, place, id), of `shares`; add(share), unless it is there; weight(share, code), `code` being its weight
-- in the code; changes(), of the weights, false if there was none; known, what this script has read; LOT_KEYS; precise(number), a text; HELD, CLOCK, SINCE, FROM_PLACE, SOME_HELD, and MARKS, how many members there are at
-- the most that are no share.
local HELD, MARKS = 4503599627370496, 4 -- 2^52
local CLOCK, SINCE, FROM_PLACE, SOME_HELD = '\0', '\0since', '\0from', '\0held'
LOT_KEYS = 16
shares = {}
local known = {} -- what this script has read, by its key

local function precise(number)
    return format('%.17g', number)
end

function shares.of(message)
    if string.byte(message, -2) == 125 then return nil end -- }}
    local last = string.sub(message, -130)
    return match(last, '"share": "([^"]*)"}$') or match(last, '"share": "([^"]*)", "order": %-?%d+}$')
end

function shares.entry(share, place, id)
    return format('%s\0%016d\0', share, place) .. id
end

function shares.add(share)
    local clock = call('ZSCORE', TURNS, CLOCK)
    if not clock then
        clock = -1
        call('ZADD', TURNS, clock, CLOCK, int(-now), SINCE, clock, FROM_PLACE)
    end
    call('ZADD', TURNS, 'NX', precise(-clock), share)
end

function shares.changes()
    if known[WEIGHTS] == nil then known[WEIGHTS] = call('HGET', WEIGHTS, CLOCK) or false end
    return known[WEIGHTS]
end

function shares.weight(share, code)
    return tonumber(shares.changes() and match(call('HGET', WEIGHTS, share) or '', '^%S+') or code)
end
