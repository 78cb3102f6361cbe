-- change_history: what people have changed of a limit, see include/keep_change.lua. Writes nothing.
--
-- KEYS   1  history
-- Reply  us of this clock, then the changes, the newest first
local HISTORY = KEYS[1]
--!include prelude.lua
--!include now.lua

return {int(now), unpack(call('LRANGE', HISTORY, 0, -1))}
