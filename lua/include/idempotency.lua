-- What was done under an id, kept for an hour: so a repeated call finds out that it is one.
--
-- ids key: sorted set. Members: the id of a reservation -> us at which its permits are good; NUL "c" id -> the same and as many
-- more as it cost, if that is more than one; NUL "s" id -> us at which it was settled or cancelled. (An id that begins with NUL
-- has two more before it.)
--
-- Gives member_of(id), cost_of(id) and settled(id), the three members; remember(key, member, at); remember_reserved(key, id, at,
-- cost). `key` is the ids key of a limit, `at` is in us.
local REMEMBERED_US = 3600000000

local function member_of(id)
    return string.byte(id) == 0 and '\0\0' .. id or id
end

local function cost_of(id)
    return '\0c' .. id
end

local function settled(id)
    return '\0s' .. id
end

local function remember(key, member, at)
    call('ZREMRANGEBYSCORE', key, '-inf', int(now - REMEMBERED_US))
    call('ZADD', key, int(at), member)
    local last = tonumber(call('ZRANGE', key, -1, -1, 'WITHSCORES')[2])
    call('PEXPIRE', key, int(ceil((max(now, last) - now + REMEMBERED_US) / 1000)))
end

-- An older reservation of this id is forgotten.
local function remember_reserved(key, id, at, cost)
    call('ZREM', key, settled(id), cost_of(id))
    if cost > 1 then call('ZADD', key, int(at + cost), cost_of(id)) end
    remember(key, member_of(id), at)
end
