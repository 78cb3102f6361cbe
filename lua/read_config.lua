-- read_config: what is stored for a limit, for one of its keys, and about its shadow. Writes nothing.
--
-- KEYS   1  config of the name, 2 config of the key; see include/config_format.lua; 3 shadow, see set_shadow.lua
-- Reply  us of this clock, then the three texts; '' where there is none
local NAME_KEY, OWN_KEY, SHADOW = KEYS[1], KEYS[2], KEYS[3]
--!include prelude.lua
--!include now.lua
local got = call('MGET', NAME_KEY, OWN_KEY, SHADOW)
return {int(now), got[1] or '', got[2] or '', got[3] or ''}
