-- due: which parking lots has somebody to look after?
--
-- KEYS   of each limit its lots, see include/lot.lua
-- ARGV   1  most      of each limit no more than so many
-- Reply  for each limit: keys of buckets
-- Writes nothing
--!include prelude.lua
--!include now.lua

local due = {}
for i = 1, #KEYS do
    due[i] = call('ZRANGEBYSCORE', KEYS[i], '-inf', int(now), 'LIMIT', 0, ARGV[1])
end
return due
