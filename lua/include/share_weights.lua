-- The weights of a limit's shares, see shares.lua. Defined where it is needed, if that is seldom (add_task_to_share.lua).
--
-- Uses now; SHARES, TURNS, WEIGHTS of lot.lua; shares, known, CLOCK, SINCE, FROM_PLACE, SUM, STORED, KEPT_MS of shares.lua.
-- Gives precise(number), a text; in shares weight(share, code), `code` being its weight in the code; changes(), of the weights, false if
-- there was none; add(share, code), which is not in `turns`.
local MOST_WEIGHT = 1000000
local function precise(number)
    return format('%.17g', number)
end

function shares.add(share, code)
    local clock = call('ZSCORE', TURNS, CLOCK)
    if not clock then
        clock, known[TURNS] = -1, 1
        call('ZADD', TURNS, clock, CLOCK, int(-now), SINCE, clock, FROM_PLACE)
        call('PEXPIRE', TURNS, KEPT_MS)
        call('PEXPIRE', SHARES, KEPT_MS)
    end
    local sum = known[TURNS] or -(call('ZSCORE', TURNS, SUM) or -1)
    local weight = sum < STORED and code + 0 or shares.weight(share, code)
    known[TURNS] = sum + (weight >= 0 and weight <= MOST_WEIGHT and weight or 1)
    call('ZADD', TURNS, precise(-clock), share, precise(-known[TURNS]), SUM)
end

function shares.changes()
    if known[WEIGHTS] == nil then known[WEIGHTS] = call('HGET', WEIGHTS, CLOCK) or false end
    return known[WEIGHTS]
end

function shares.weight(share, code)
    return tonumber(shares.changes() and match(call('HGET', WEIGHTS, share) or '', '^%S+') or code)
end
