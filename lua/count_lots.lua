-- count_lots: how many are in each of these? Asked of lots when a worker starts, and by whoever looks at all limits.
--
-- KEYS   sorted sets, see include/lot.lua: of each limit its lots, and where its tasks are
-- Reply  for each how many there are
-- Writes nothing
--!include prelude.lua

local answer = {}
for i = 1, #KEYS do answer[i] = call('ZCARD', KEYS[i]) end
return answer
