-- pause: let nothing through for some time, anywhere. A shorter pause never shortens one that is there.
--
-- KEYS   1  config, see include/stored.lua; 2  changes, see include/config.lua
-- ARGV   1  lasts     us, >= 0; 0: go on (resume)
-- Reply  us that it is paused for, from now; for a resume: 1 if it was paused
-- Writes config; time to live: as long as the pause, if nothing else is there
local lasts = tonumber(ARGV[1])
--!include prelude.lua
--!include now.lua
--!include config.lua

local was_paused = config.paused > 0
config.paused = lasts > 0 and max(config.paused, now + lasts) or 0
keep_config()
if lasts > 0 then return config.paused - now end -- who comes is told; who waits need not come sooner
tell()
return was_paused and 1 or 0
