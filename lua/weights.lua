-- weights: the stored weights of a limit's shares. Writes nothing.
--
-- KEYS   1  weights, see include/shares.lua
-- Reply  us of this clock; share, what is stored for it, share, ...
local WEIGHTS = KEYS[1]
--!include prelude.lua
--!include now.lua
return {int(now), call('HGETALL', WEIGHTS)}
