-- config: what is stored for a limit, and for one of its keys. Writes nothing.
--
-- KEYS   1  config of the name, 2 config of the key; see include/config_text.lua
-- Reply  us of this clock, then the two texts; '' where there is none
local NAME_KEY, OWN_KEY = KEYS[1], KEYS[2]
--!include prelude.lua
--!include now.lua
local got = call('MGET', NAME_KEY, OWN_KEY)
return {int(now), got[1] or '', got[2] or ''}
