-- reduce_rate: the upstream has refused a call of an adaptive limit: the limit has 0.7 of its rate from now on, and recovers.
--
-- One reduction for each incident: a call whose permit was good before the last one says nothing about the rate since.
--
-- Source: CUBIC (RFC 9438) with a fixed time to recover, see include/adaptive_rate.lua.
-- KEYS   1  config, see include/config_format.lua; 2  changes, see include/change_config.lua; 3  what was touched, see include/mark_for_recheck.lua;
--        4  history, see include/keep_change.lua; 5  key_settings, see include/change_config.lua
--        6  config of the whole limit
-- ARGV   1  granted   us at which the refused call's permit was good; 0: not known, and a reduction less than a second ago was enough
--        2  recover   us, > 0: after which the rate is what it was; the whole rate comes after twice that
--        3  least     millionths of the rate that the limit keeps, > 0
--        4  note      text: what only clients read
--        5  key       text: of the bucket; '' for the whole limit
-- Reply  millionths of the rate that are in force now; 0: another algorithm is stored, whose rate does not adapt
-- Writes config, TTL until the whole rate is back and an hour more, unless something else is stored; history
local CONFIG_KEY, CHANGES, TOUCHED, HISTORY, KEY_SETTINGS, WHOLE_CONFIG = unpack(KEYS)
local granted, recover, least, NOTE, BUCKET = ARGV[1] + 0, ARGV[2] + 0, ARGV[3] + 0, ARGV[4], ARGV[5]
--!include prelude.lua
--!include now.lua
--!include change_config.lua
--!include adaptive_rate.lua

local stored = has_rate(text) and text or call('GET', WHOLE_CONFIG)
if has_rate(stored) and select(4, match(stored, CONFIG)) ~= 'token_bucket' then return 0 end

local before = 1
if config.adapted then
    before = adapted_share(now, unpack(config.adapted))
    local reduced = config.adapted[1]
    if (granted > 0 and granted or now - 1000000) <= reduced then return floor(before * 1000000) end
end
config.adapted = {now, max(floor(before * 1000000), min(1000000, ceil(least / 0.7))), recover, least}
keep_config('reduce')
tell()
return floor(adapted_share(now, unpack(config.adapted)) * 1000000)
