-- check_permissions: may this user do all that the other scripts do? Asked once, when a worker starts; leaves nothing behind.
--
-- KEYS   1  a key of ours that nothing else uses
-- Reply  1
-- Writes KEYS[1], and removes it
local key = KEYS[1]
--!include prelude.lua
--!include now.lua

call('MGET', key)
call('EXISTS', key)
call('SET', key, '1', 'PX', 1000)
call('PEXPIRE', key, 1000)
call('PTTL', key)
call('GET', key)
call('RENAME', key, key)
call('UNLINK', key)
call('RPUSH', key, '1')
call('PEXPIRE', key, 1000) -- at once, should it lack the right to what follows
call('LPUSH', key, '0')
call('LSET', key, 0, '0')
call('LINDEX', key, 0)
call('LLEN', key)
call('LRANGE', key, 0, -1)
call('LTRIM', key, 0, 0)
call('DEL', key)
call('ZADD', key, int(now), 'one')
call('ZADD', key, 'XX', 'LT', int(now), 'one')
call('PEXPIRE', key, 1000)
call('ZSCORE', key, 'one')
call('ZRANK', key, 'one')
call('ZCARD', key)
call('ZCOUNT', key, '-inf', '+inf')
call('ZRANGE', key, 0, -1)
call('ZRANGEBYSCORE', key, '-inf', '+inf')
call('ZRANGEBYLEX', key, '-', '+')
call('ZSCAN', key, 0)
call('ZREMRANGEBYSCORE', key, '-inf', '(0')
call('ZREM', key, 'one')
call('DEL', key)
call('HSET', key, 'one', '1')
call('PEXPIRE', key, 1000)
call('HGET', key, 'one')
call('HEXISTS', key, 'one')
call('HINCRBY', key, 'two', '1')
call('HLEN', key)
call('HSCAN', key, 0)
call('HDEL', key, 'one', 'two')
return 1
