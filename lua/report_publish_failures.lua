-- report_publish_failures: a worker reports tasks that it could not publish, and tasks that it has published since; the reply lists all failures.
--
-- KEYS   1  failures  hash, "<limit> NUL <queue> NUL <task's id, or nothing>" -> "<us of the first> <us of the last> <error>"
-- ARGV   1  kept      us: for how long a failure that is not reported again is kept
--        2  most      failures that are kept
--        3  number    of fields that follow: their tasks are published
--        4+           these; then pairs of a field and the broker's error
-- Reply  fields, each followed by its value
-- Writes failures; time to live: `kept`
local FAILURES = KEYS[1]
local KEPT, MOST, FIRST = tonumber(ARGV[1]), tonumber(ARGV[2]), 4
local last = FIRST - 1 + ARGV[3] -- of the fields of published tasks
--!include prelude.lua
--!include now.lua

for i = FIRST, last do call('HDEL', FAILURES, ARGV[i]) end
for i = last + 1, #ARGV, 2 do
    local first = match(call('HGET', FAILURES, ARGV[i]) or '', '^%d+')
    if first or #call('HGETALL', FAILURES) < 2 * MOST then
        call('HSET', FAILURES, ARGV[i], format('%s %s %s', first or int(now), int(now), ARGV[i + 1]))
        call('PEXPIRE', FAILURES, int(ceil(KEPT / 1000)))
    end
end
local all, answer = call('HGETALL', FAILURES), {}
for i = 1, #all, 2 do
    if tonumber(match(all[i + 1], '^%d+ (%d+)')) > now - KEPT then
        answer[#answer + 1], answer[#answer + 2] = all[i], all[i + 1]
    elseif #ARGV >= FIRST then -- it is no look, which writes nothing
        call('HDEL', FAILURES, all[i])
    end
end
return answer
