-- set_rate: put a rate in the place of the code's, for everyone from the next decision on.
--
-- KEYS   1  config, see include/config_format.lua; 2  changes, see include/change_config.lua; 3  what was touched, see include/mark_for_recheck.lua;
--        4  history, see include/keep_change.lua; 5  key_settings, see include/change_config.lua
-- ARGV   1  only      1: only if no rate is stored
--        2  version   whole, > 0: not if one of this or a later version was there; 0: by hand, the version stays
--        3  lasts     us, > 0: after which the code's rate holds again; 0: for ever
--        4  algorithm, 5 count, 6 period, 7 size, 8 extra: see include/read_limits.lua
--        9  note      text: what only clients read
--        10 key       text: of the bucket; '' for the whole limit
-- Reply  1 if it is in force now, 0 if another stays
-- Writes config, history, key_settings; no time to live, unless it has an end and no version: then an hour longer
local CONFIG_KEY, CHANGES, TOUCHED, HISTORY, KEY_SETTINGS = unpack(KEYS)
local ONLY, version, lasts = ARGV[1] == '1', tonumber(ARGV[2]), tonumber(ARGV[3])
local method, count, period, size, extra, NOTE, BUCKET = unpack(ARGV, 4, 10)
--!include prelude.lua
--!include now.lua
--!include change_config.lua

if ONLY and config.method ~= '-' then return 0 end
if version > 0 then
    if version <= config.version then return 0 end
    config.version = version
end
config.expiry = lasts > 0 and now + lasts or 0
config.method, config.count, config.period, config.size, config.extra = method, count, period, size, extra
config.since = now
note_rate(NOTE)
keep_config('set')
tell()
return 1
