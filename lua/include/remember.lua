-- What an id has done, kept in a sorted set id -> us, for an hour.
local MEMORY_US = 3600000000
local function remember(key, id, at)
    call('ZREMRANGEBYSCORE', key, '-inf', int(now - MEMORY_US))
    call('ZADD', key, int(at), id)
    local last = tonumber(call('ZRANGE', key, -1, -1, 'WITHSCORES')[2])
    call('PEXPIRE', key, int(ceil((max(now, last) - now + MEMORY_US) / 1000)))
end
