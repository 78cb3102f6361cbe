-- attend: a worker says which queues it consumes, and hears which no worker consumes.
--
-- KEYS   1  workers   sorted set, "<worker> NUL <queue>" -> us until which it may be taken for alive
--        2  queues    sorted set, queue -> us until which a worker consumes it, or since which none does
-- ARGV   1  worker    text
--        2  lasts     us: after which it is taken for dead, unless it says so again
--        3  known     us: for how long a queue is known that no worker consumes; a queue that was never consumed is not known
--        4  number    of the queues that follow: which it consumes
--        5+           queues; then those that it does not consume any more
-- Reply  queues that a worker consumes, if there are others; queues that no worker consumes; how many workers consume how many
--        queues, one multiplied by the other
-- Writes both; time to live: for as long as they say anything
local WORKERS, QUEUES, worker = KEYS[1], KEYS[2], ARGV[1]
local LASTS, KNOWN, FIRST_QUEUE = tonumber(ARGV[2]), tonumber(ARGV[3]), 5
local last = FIRST_QUEUE - 1 + ARGV[4] -- of those that it consumes
--!include prelude.lua
--!include now.lua

for i = FIRST_QUEUE, last do
    call('ZADD', WORKERS, int(now + LASTS), worker .. '\0' .. ARGV[i])
    call('ZADD', QUEUES, int(now + LASTS), ARGV[i])
end
for i = last + 1, #ARGV do call('ZREM', WORKERS, worker .. '\0' .. ARGV[i]) end
if #ARGV > last then -- do other workers consume them?
    local ends = {}
    local alive = call('ZRANGEBYSCORE', WORKERS, '(' .. int(now), '+inf', 'WITHSCORES')
    for i = 1, #alive, 2 do
        local queue = match(alive[i], '%z([^%z]*)$')
        ends[queue] = max(ends[queue] or 0, alive[i + 1])
    end
    for i = last + 1, #ARGV do call('ZADD', QUEUES, int(ends[ARGV[i]] or now), ARGV[i]) end
end
call('ZREMRANGEBYSCORE', WORKERS, '-inf', int(now))
call('ZREMRANGEBYSCORE', QUEUES, '-inf', int(now - KNOWN))
call('PEXPIRE', WORKERS, int(ceil(LASTS / 1000)))
call('PEXPIRE', QUEUES, int(ceil(KNOWN / 1000)))
local absent = call('ZRANGE', QUEUES, int(now), '-inf', 'BYSCORE', 'REV', 'LIMIT', 0, 1000) -- the latest: some names are one worker's
return {#absent > 0 and call('ZRANGEBYSCORE', QUEUES, '(' .. int(now), '+inf') or {}, absent, call('ZCARD', WORKERS)}
