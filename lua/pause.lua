-- pause: let nothing through for some time, anywhere. A shorter pause never shortens one that is there.
--
-- KEYS   1  config, see include/config_text.lua; 2  changes, see include/change_config.lua; 3  what was touched, see include/touch.lua
-- ARGV   1  lasts     us, >= 0; 0: go on (resume)
--        2  key       text: of the bucket; '' for the whole limit
-- Reply  us that it is paused for, from now; for a resume: 1 if it was paused
-- Writes config; time to live: an hour longer than the pause, if nothing else is there
local CONFIG_KEY, CHANGES, TOUCHED = KEYS[1], KEYS[2], KEYS[3]
local lasts, BUCKET = tonumber(ARGV[1]), ARGV[2]
--!include prelude.lua
--!include now.lua
--!include change_config.lua

local was_paused = config.paused > 0
if lasts > 0 then
    config.paused = max(config.paused, now + lasts)
    keep_config() -- and no worker is told: a request that comes is refused, and one that waits need not come sooner
    return config.paused - now
end
if not was_paused then return 0 end
config.paused, config.resumed = 0, now
keep_config()
tell()
return 1
