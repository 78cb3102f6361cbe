-- A task is parked, and is one of those of a share, see shares.lua.
--
-- Uses SHARES, TURNS of lot.lua; shares, known, HELD, STORED, CLOCK, SUM of shares.lua.
-- Gives in shares ahead(share, weight, entry, ahead, number), what the tasks cost that are before it, where all `number` cost `ahead`,
-- and whether there are any, `weight` being that in the code; join(share, weight, entry, is_there, refund), which notes it, and
-- gives back what was paid for it when it was let out; returns whether its share was not there.
local function learn()
    if shares.weight then return end
--!include share_weights.lua
end

function shares.ahead(share, weight, entry, ahead, number)
    if ahead == 0 then return 0, false end
    local first, last = '[' .. share .. '\0', '(' .. entry
    local own = redis.pcall('ZLEXCOUNT', SHARES, first, last)
    if type(own) ~= 'number' then -- a right that the store's user may lack: then all are taken for its own, if any is
        own = call('ZRANGEBYLEX', SHARES, first, last, 'LIMIT', 0, 1)[1] and number or 0
    end
    if own == 0 then return 0, false end
    known[TURNS] = known[TURNS] or -(call('ZSCORE', TURNS, SUM) or 0)
    local sum = known[TURNS] % STORED - 1
    if known[TURNS] >= STORED then
        learn()
        weight = shares.weight(share, weight)
    end
    weight = weight + 0
    return weight > 0 and min(ahead, ceil(own * ahead / number * max(sum, weight) / weight)) or ahead, true
end

function shares.join(share, weight, entry, is_there, refund)
    call('ZADD', SHARES, 0, entry)
    if is_there and not refund then return false end
    learn()
    local tag = tonumber(call('ZSCORE', TURNS, share))
    if not tag then
        shares.add(share, weight)
        return true
    end
    weight = refund and tag < HELD and shares.weight(share, weight) or 0
    if weight > 0 then
        call('ZADD', TURNS, format('%.17g', max(-call('ZSCORE', TURNS, CLOCK), tag - refund / weight)), share)
    end
end
