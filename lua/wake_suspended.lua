-- wake_suspended: a worker consumes a queue that no worker has consumed: the lots in which tasks are aside have to be looked after. In steps.
--
-- KEYS   1  lots, 2  asides, see include/lot.lua
-- ARGV   1  from      '-', or '(' and the key of the bucket to which the step before has come
--        2  offset    how many lots there were before that
--        3  most      lots
-- Reply  keys of buckets
-- Writes lots
local LOTS, ASIDES = KEYS[1], KEYS[2]
local FROM, OFFSET, MOST = ARGV[1], ARGV[2], ARGV[3]
--!include prelude.lua
--!include now.lua
--!include queue_of_lots.lua

local buckets = call('ZRANGEBYLEX', ASIDES, FROM, '+', 'LIMIT', 0, MOST)
local each = call('ZCARD', ASIDES) > FEW and EACH_US or 0
for i, key in ipairs(buckets) do
    call('ZADD', LOTS, 'XX', 'LT', int(now + (OFFSET + i) * each), key)
end
return buckets
