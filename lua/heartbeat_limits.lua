-- heartbeat_limits: a worker reports its limits and return queues; the reply contains limits and return queues without recent reports.
--
-- KEYS   1  limits    sorted set, name of a limit -> us of the last report of a worker that has the limit in its code
--        2  returns   sorted set, "<return queue> NUL <queue>" -> us of the last report of a worker that consumes it
--        3  queues    see heartbeat_queues.lua
-- ARGV   1  kept      us: for how long both are known
--        2  after     us: reply with entries that were not reported for that long; below zero: also with queues that are consumed
--        3  most      of each; -1: all
--        4  limits, 5 returns: number of each that follow
--        6+           these; then the limits and returns to forget, unless a worker has reported them meanwhile
-- Reply  three lists: limits, returns, and queues that no worker consumes; each entry is followed by us since its last report;
--        of a queue that a worker consumes, below zero
-- Writes both; time to live: `kept`
local KEPT, AFTER, MOST = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3]
local NUMBERS = {tonumber(ARGV[4]), tonumber(ARGV[5])}
--!include prelude.lua
--!include now.lua

local at = 5
for kind = 1, 2 do
    for i = at + 1, at + NUMBERS[kind] do call('ZADD', KEYS[kind], int(now), ARGV[i]) end
    at = at + NUMBERS[kind]
    if NUMBERS[kind] > 0 then call('PEXPIRE', KEYS[kind], int(ceil(KEPT / 1000))) end
end
for i = at + 1, #ARGV do
    for kind = 1, 2 do
        local seen = call('ZSCORE', KEYS[kind], ARGV[i])
        if seen and tonumber(seen) <= now - AFTER then call('ZREM', KEYS[kind], ARGV[i]) end
    end
end
local answer = {}
for kind = 1, 3 do
    local found = call('ZRANGEBYSCORE', KEYS[kind], '-inf', int(now - AFTER), 'WITHSCORES', 'LIMIT', 0, MOST)
    for i = 2, #found, 2 do found[i] = int(now - found[i]) end
    answer[kind] = found
end
return answer
