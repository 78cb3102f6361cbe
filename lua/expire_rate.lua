-- expire_rate: the stored rate ends after some time; then the code's holds again.
--
-- KEYS   1  config, see include/config_text.lua; 2  changes, see include/change_config.lua; 3  what was touched, see include/touch.lua
-- ARGV   1  lasts     us, >= 0; 0: now
--        2  key       text: of the bucket; '' for the whole limit
-- Reply  1 if there was one, else 0
-- Writes config; time to live: an hour longer, unless it has a version
local CONFIG_KEY, CHANGES, TOUCHED = KEYS[1], KEYS[2], KEYS[3]
local lasts, BUCKET = tonumber(ARGV[1]), ARGV[2]
--!include prelude.lua
--!include now.lua
--!include change_config.lua

if config.method == '-' then return 0 end
if lasts > 0 then
    config.expiry = now + lasts
else
    config.method, config.expiry, config.since, config.note = '-', 0, now, ''
end
keep_config()
tell()
return 1
