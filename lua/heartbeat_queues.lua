-- heartbeat_queues: a worker says which queues it consumes, and hears which no worker consumes.
--
-- KEYS   1  alive     sorted set, worker -> us until which it is on time: it says so again before that, or is late
--        2  workers   sorted set, "<worker> NUL <queue>" -> us until which it may be taken for alive
--        3  queues    sorted set, queue -> us until which a worker consumes it, or since which none does
-- ARGV   1  worker    text
--        2  lasts     us: after which it is taken for dead, unless it says so again; after half of it, it is late; 0: it ends
--        3  known     us: for how long a queue is known that no worker consumes; a queue that was never consumed is not known
--        4  number    of the queues that follow: which it consumes
--        5+           queues; then those that it does not consume any more
-- Reply  queues that a worker consumes, if there are others; queues that no worker consumes; how many workers are on time
-- Writes all; time to live: for as long as they say anything
local ALIVE, WORKERS, QUEUES, worker = KEYS[1], KEYS[2], KEYS[3], ARGV[1]
local LASTS, KNOWN, FIRST_QUEUE = tonumber(ARGV[2]), tonumber(ARGV[3]), 5
local last = FIRST_QUEUE - 1 + ARGV[4] -- of those that it consumes
--!include prelude.lua
--!include now.lua

local unsure = {} -- queues whose last time was this worker's, which is earlier now: do other workers consume them?
for i = FIRST_QUEUE, #ARGV do
    local queue, claim = ARGV[i], worker .. '\0' .. ARGV[i]
    if i > last then
        call('ZREM', WORKERS, claim)
        unsure[queue] = now
    else
        local before = tonumber(call('ZSCORE', WORKERS, claim) or 0)
        call('ZADD', WORKERS, int(now + LASTS), claim)
        call('ZADD', QUEUES, 'GT', int(now + LASTS), queue) -- another worker may have said that it stays for longer
        if before > now + LASTS and tonumber(call('ZSCORE', QUEUES, queue)) <= before then unsure[queue] = now end
    end
end
if next(unsure) then
    local alive = call('ZRANGEBYSCORE', WORKERS, '(' .. int(now), '+inf', 'WITHSCORES')
    for i = 1, #alive, 2 do
        local queue = match(alive[i], '%z([^%z]*)$')
        if unsure[queue] then unsure[queue] = max(unsure[queue], alive[i + 1]) end
    end
    for i = FIRST_QUEUE, #ARGV do
        if unsure[ARGV[i]] then call('ZADD', QUEUES, int(unsure[ARGV[i]]), ARGV[i]) end
    end
end
call('ZADD', ALIVE, int(now + LASTS / 2), worker)
for _, key in ipairs({ALIVE, WORKERS}) do
    call('ZREMRANGEBYSCORE', key, '-inf', int(now))
    local latest = call('ZRANGE', key, -1, -1, 'WITHSCORES')[2]
    if latest then call('PEXPIRE', key, int(ceil((latest - now) / 1000))) end
end
call('ZREMRANGEBYSCORE', QUEUES, '-inf', int(now - KNOWN))
call('PEXPIRE', QUEUES, int(ceil(KNOWN / 1000)))
local absent = call('ZRANGE', QUEUES, int(now), '-inf', 'BYSCORE', 'REV', 'LIMIT', 0, 1000) -- the latest: some names are one worker's
return {#absent > 0 and call('ZRANGEBYSCORE', QUEUES, '(' .. int(now), '+inf') or {}, absent, call('ZCARD', ALIVE)}
