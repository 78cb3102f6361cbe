-- heartbeat_limits: a worker that is alive attends to these limits and return queues; to which has none attended for some time?
--
-- KEYS   1  limits    sorted set, name of a limit -> us at which a worker that has it in its code has said so last
--        2  returns   sorted set, "<return queue> NUL <queue>" -> us at which a worker that consumes it has said so last
--        3  queues    see heartbeat_queues.lua
-- ARGV   1  kept      us: for how long both are known
--        2  after     us, >= 0: what was not seen for that long
--        3  most      of each; -1: all
--        4  limits, 5 returns: how many follow
--        6+           these; then those of either kind that are to be forgotten, unless a worker has attended to them meanwhile
-- Reply  three lists: of limits, returns, and queues that no worker consumes, each followed by how many us ago it was seen last
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
