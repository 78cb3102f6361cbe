-- What an id has done, kept for an hour.
--
-- ids key: sorted set. Members: the id of a reservation -> us at which its permits are good; NUL "c" id -> the same and as many
-- more as it cost, if that is more than one; NUL "s" id -> us at which it was settled or cancelled. (An id that begins with NUL
-- has two more before it.)
local MEMORY_US = 3600000000

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
    call('ZREMRANGEBYSCORE', key, '-inf', int(now - MEMORY_US))
    call('ZADD', key, int(at), member)
    local last = tonumber(call('ZRANGE', key, -1, -1, 'WITHSCORES')[2])
    call('PEXPIRE', key, int(ceil((max(now, last) - now + MEMORY_US) / 1000)))
end

-- What an older reservation of this id was is forgotten.
local function remember_reserved(key, id, at, cost)
    call('ZREM', key, settled(id), cost_of(id))
    if cost > 1 then call('ZADD', key, int(at + cost), cost_of(id)) end
    remember(key, member_of(id), at)
end
