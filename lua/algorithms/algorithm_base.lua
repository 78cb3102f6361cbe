-- What the algorithms that count permits have in common. Their line is in base_line.lua.
--
-- An algorithm gives    read(limit, now)                        the bucket as it is, into `limit`
--                       advance(limit, now)                     moves it on to now
--                       earliest(limit, now, ahead, permits)    when so many permits more could be taken, after `ahead` others
--                       take(limit, joint, permits)             takes them
--                       write(limit, now)                       keeps it for kept_ms(limit, now, us at which it is full again)
--                       charge, give_back, state                see token_bucket.lua
--                       one_by_one                              true: requests go one after the other, never several at once
--                       unforeseen                              true: when others go is not known
-- The rest of what lua/README.md asks of an algorithm it takes from `counted`, its metatable.
--
-- In the limit: `began` us: what was granted earlier was not granted by this algorithm, and cannot be given back; `written` us, of
-- the last write; `newest` us, of the newest permit; `waiting` permits that the requests in the line ask for. The last three are
-- part of the state.
counted = {}
counted.__index = counted

function counted.check(limit, now, id)
    local algorithm = limit.algorithm
    limit.waiting, limit.written, limit.id = 0, now, id
    if limit.used_up then
        algorithm.read(limit, limit.used_up)
        algorithm.take(limit, limit.used_up, limit.burst)
        algorithm.advance(limit, now)
        limit.began = limit.used_up + 1
    else
        algorithm.read(limit, now)
    end
    local written = limit.written
    if written - now > STEP_US or written < limit.since or written < limit.resumed then
        limit.waiting, limit.changed = 0, true -- the slots mean nothing now: a request that comes gets another
    end
    limit.line = limit.waiting > 0
    limit.grant = max(now, algorithm.earliest(limit, now, 0, limit.cost))
end

function counted.commit(limit, now, id, joint)
    limit.algorithm.take(limit, joint, limit.cost)
    if limit.owner or limit.overdue then counted.take_out(limit, limit.owner and id or limit.overdue) end
    limit.algorithm.write(limit, now)
end

-- For how long a bucket is kept: until `full`, and until the line is empty, by a clock that may step back.
function kept_ms(limit, now, full)
    local line = limit.waiting > 0 and limit.last and limit.last + GRACE_US or now
    return int(ceil((max(full, line) - now + STEP_US) / 1000))
end
