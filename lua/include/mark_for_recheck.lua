-- Notes that something was given back to a bucket, so that a turn there may come sooner than was foreseen. A worker that has tasks
-- parked there looks at the lot again, see find_due_lots.lua.
--
-- touched key, one for each limit: sorted set, key of a bucket -> us. Each is later than all before it, whatever the clock does.
-- Expires a minute after the last.
--
-- Gives touch(key, bucket): `key` is the touched key of a limit, `bucket` the key of its bucket.
local TOUCHED_US = 60000000
local function touch(key, bucket)
    local last = tonumber(call('ZRANGE', key, -1, -1, 'WITHSCORES')[2]) or 0
    call('ZADD', key, int(max(now, last + 1)), bucket)
    call('ZREMRANGEBYSCORE', key, '-inf', int(now - TOUCHED_US))
    call('PEXPIRE', key, int(TOUCHED_US / 1000))
end
