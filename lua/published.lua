-- published: these have left the lot and are at the broker again.
--
-- KEYS   see include/lot.lua
-- ARGV   1  number    of the pairs that follow; after them: ids whose older copies are acknowledged by now
--        2+           pairs of an id and the number of its copy
-- Reply  1
-- Writes the lot
local LOT = 0
--!include prelude.lua
--!include lot.lua

for i = 2, 2 * ARGV[1], 2 do
    at_broker(ARGV[i], ARGV[i + 1])
end
acknowledged(2 + 2 * ARGV[1])
return 1
