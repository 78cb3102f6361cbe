-- occupied: which of these limits have parking lots with tasks in them? Asked when a worker starts, and by whoever looks at all limits.
--
-- KEYS   of each limit its lots, see include/lot.lua
-- Reply  for each 1 or 0
-- Writes nothing
--!include prelude.lua

local answer = {}
for i = 1, #KEYS do answer[i] = call('EXISTS', KEYS[i]) end
return answer
