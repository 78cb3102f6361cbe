-- make_suspended_lots_due: a worker consumes a queue that had no worker: make the parking lots with tasks set aside due. In steps.
--
-- KEYS   1  due, 2  suspended_lots, see include/lot.lua
-- ARGV   1  from      '-', or '(' and the key of the last bucket of the previous step
--        2  offset    number of parking lots in the previous steps
--        3  most      parking lots
-- Reply  keys of buckets
-- Writes due
local DUE_LOTS, SUSPENDED_LOTS = KEYS[1], KEYS[2]
local FROM, OFFSET, MOST = ARGV[1], ARGV[2], ARGV[3]
--!include prelude.lua
--!include now.lua
--!include spread_due_lots.lua

local buckets = call('ZRANGEBYLEX', SUSPENDED_LOTS, FROM, '+', 'LIMIT', 0, MOST)
local each = call('ZCARD', SUSPENDED_LOTS) > FEW and EACH_US or 0
for i, key in ipairs(buckets) do
    call('ZADD', DUE_LOTS, 'XX', 'LT', int(now + (OFFSET + i) * each), key)
end
return buckets
