-- expire_rate: the stored rate ends after some time; then the code's holds again.
--
-- KEYS   1  config, see include/stored.lua; 2  changes, see include/config.lua
-- ARGV   1  lasts     us, >= 0; 0: now
-- Reply  1 if there was one, else 0
-- Writes config; time to live: an hour longer, unless it has a version
local lasts = tonumber(ARGV[1])
--!include prelude.lua
--!include now.lua
--!include config.lua

if config.method == '-' then return 0 end
if lasts > 0 then
    config.expiry = now + lasts
else
    config.method, config.expiry, config.since, config.note = '-', 0, now, ''
end
keep_config()
tell()
return 1
