-- set_rate_expiry: the stored rate ends after some time; then the code's holds again.
--
-- KEYS   1  config, see include/config_format.lua; 2  changes, see include/change_config.lua; 3  what was touched, see include/mark_for_recheck.lua;
--        4  history, see include/keep_change.lua; 5  key_settings, see include/change_config.lua
-- ARGV   1  lasts     us, >= 0; 0: now
--        2  key       text: of the bucket; '' for the whole limit
--        3  note      text: author and reason, for the history
-- Reply  1 if there was one, else 0
-- Writes config, history, key_settings; time to live: an hour longer, unless it has a version
local CONFIG_KEY, CHANGES, TOUCHED, HISTORY, KEY_SETTINGS = unpack(KEYS)
local lasts, BUCKET, NOTE = tonumber(ARGV[1]), ARGV[2], ARGV[3]
--!include prelude.lua
--!include now.lua
--!include change_config.lua

if config.method == '-' then return 0 end
if lasts > 0 then
    config.expiry = now + lasts
else
    config.method, config.expiry, config.since = '-', 0, now
    note_rate('')
end
keep_config(lasts > 0 and 'expire' or 'unset')
tell()
return 1
