-- heartbeat_queues: a worker reports the queues that it consumes; the reply contains the queues that no worker consumes.
--
-- KEYS   1  alive     sorted set, worker -> us until which it is on time: a worker that does not report again by then is late
--        2  workers   sorted set, "<worker> NUL <queue>" -> us until which the worker counts as alive
--        3  queues    sorted set, queue -> us until which a worker consumes it, or since which no worker does
-- ARGV   1  worker    text
--        2  lasts     us: after which it counts as dead, unless it reports again; after half of that it is late; 0: the worker ends
--        3  known     us: for how long a queue without workers is known; a queue that no worker ever consumed is not known
--        4  number    of queues that follow and that the worker consumes
--        5+           these queues; then the queues that the worker no longer consumes
-- Reply  queues that no worker consumes; number of workers on time
-- Writes all; time to live: until the last of their times has passed
local ALIVE, WORKERS, QUEUES, worker = KEYS[1], KEYS[2], KEYS[3], ARGV[1]
local LASTS, KNOWN, FIRST_QUEUE = tonumber(ARGV[2]), tonumber(ARGV[3]), 5
local last = FIRST_QUEUE - 1 + ARGV[4] -- of the queues that it consumes
--!include prelude.lua
--!include now.lua

local unsure = {} -- queues for which this worker gave the last time, which is earlier now: other workers may consume them
for i = FIRST_QUEUE, #ARGV do
    local queue, claim = ARGV[i], worker .. '\0' .. ARGV[i]
    if i > last then
        call('ZREM', WORKERS, claim)
        unsure[queue] = now
    else
        local before = tonumber(call('ZSCORE', WORKERS, claim) or 0)
        call('ZADD', WORKERS, int(now + LASTS), claim)
        call('ZADD', QUEUES, 'GT', int(now + LASTS), queue) -- another worker may have reported a later time
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
return {absent, call('ZCARD', ALIVE)}
