-- config: what is stored for a limit, and for one of its keys. Writes nothing.
--
-- KEYS   1  config of the name, 2 config of the key; see include/stored.lua
-- Reply  us of this clock, then the two texts; '' where there is none
--!include prelude.lua
--!include now.lua
local got = call('MGET', KEYS[1], KEYS[2])
return {int(now), got[1] or '', got[2] or ''}
