-- recall: a queue is consumed that nobody has consumed: somebody has to look after the lots in which tasks are aside. In steps.
--
-- KEYS   1  lots, 2  asides, see include/lot.lua
-- ARGV   1  from      '-', or '(' and the key of the bucket to which the step before has come
--        2  offset    how many lots there were before that
--        3  most      lots
-- Reply  keys of buckets
-- Writes lots
local LOTS = KEYS[1]
--!include prelude.lua
--!include now.lua
--!include queue_of_lots.lua

local buckets = call('ZRANGEBYLEX', KEYS[2], ARGV[1], '+', 'LIMIT', 0, ARGV[3])
local each = call('ZCARD', KEYS[2]) > FEW and EACH_US or 0
for i, key in ipairs(buckets) do
    call('ZADD', LOTS, 'XX', 'LT', int(now + (ARGV[2] + i) * each), key)
end
return buckets
