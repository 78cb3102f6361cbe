-- A task is parked, and is one of those of a share, see shares.lua.
--
-- Uses SHARES, TURNS of lot.lua; place_in of order.lua; shares, known, HELD, CLOCK, MARKS, precise of shares.lua.
-- Gives in shares read(text), of "<steps> <weight> <share>": the steps, and the rest as a table; nothing besides the steps where that is
-- all; ahead(of_share, place, id, ahead, number), what the tasks cost that are before it, where all `number` cost `ahead`;
-- move(id, before, now_kept), for a task that gets another place, by what is and was kept of it in `messages`; join(of_share, refund), which
-- notes it, and gives back what was paid for it when it was let out; returns whether its share was not there.
function shares.read(text)
    local steps, weight, share = match(text, '^(%S+) (%S+) (.*)$')
    if not share then return text end
    return steps, {share = share, weight = weight}
end

function shares.move(id, before, now_kept)
    local share = shares.of(before) or ''
    if call('ZREM', SHARES, shares.entry(share, place_in(before), id)) == 1 then
        call('ZADD', SHARES, 0, shares.entry(share, place_in(now_kept), id))
    end
end

function shares.ahead(of_share, place, id, ahead, number)
    local share = of_share.share
    of_share.entry = shares.entry(share, place, id)
    local own = ahead > 0 and redis.pcall('ZLEXCOUNT', SHARES, '[' .. share .. '\0', '(' .. of_share.entry) or 0
    if type(own) ~= 'number' then -- a right that the store's user may lack: then all are taken for its own, if any is
        own = call('ZRANGEBYLEX', SHARES, '[' .. share .. '\0', '(' .. of_share.entry, 'LIMIT', 0, 1)[1] and number or 0
    end
    if own == 0 then return 0 end
    of_share.is_there = true
    local weight = shares.weight(share, of_share.weight)
    if weight == 0 then return ahead end
    known[TURNS] = known[TURNS] or call('ZCARD', TURNS)
    local others = max(0, known[TURNS] - MARKS) -- of what is there three or four are no share, and one is this one
    return min(ahead, ceil(own * ahead / number * (weight + others) / weight))
end

function shares.join(of_share, refund)
    local share = of_share.share
    call('ZADD', SHARES, 0, of_share.entry)
    if of_share.is_there and not refund then return false end
    local tag = tonumber(call('ZSCORE', TURNS, share))
    if not tag then
        shares.add(share)
        return true
    end
    local weight = refund and tag < HELD and shares.weight(share, of_share.weight) or 0
    if weight > 0 then
        call('ZADD', TURNS, precise(max(-call('ZSCORE', TURNS, CLOCK), tag - refund / weight)), share)
    end
end
