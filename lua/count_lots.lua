-- count_lots: count the members of sorted sets of parking lots. Called when a worker starts, and for lists of all limits.
--
-- KEYS   sorted sets, see include/lot.lua: of each limit its lots, and where its tasks are
-- Reply  for each sorted set its number of members
-- Writes nothing
--!include prelude.lua

local answer = {}
for i = 1, #KEYS do answer[i] = call('ZCARD', KEYS[i]) end
return answer
