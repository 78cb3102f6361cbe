-- pause: let nothing through for some time, anywhere. A shorter pause never shortens one that is there.
--
-- KEYS   1  config, see include/config_format.lua; 2  changes, see include/change_config.lua; 3  what was touched, see include/mark_for_recheck.lua;
--        4  history, see include/keep_change.lua; 5  key_settings, see include/change_config.lua
--        6  state; 7  refused: a pause that an upstream has caused, see report_throttle.lua
-- ARGV   1  lasts     us, >= 0; 0: go on (resume)
--        2  key       text: of the bucket; '' for the whole limit
--        3  note      text: author and reason, for the history
-- Reply  us that it is paused for, from now; for a resume: 1 if it was paused
-- Writes config, history, key_settings; time to live: an hour longer than the pause, if nothing else is there; a resume also state
local CONFIG_KEY, CHANGES, TOUCHED, HISTORY, KEY_SETTINGS, STATE, REFUSED = unpack(KEYS)
local lasts, BUCKET, NOTE = tonumber(ARGV[1]), ARGV[2], ARGV[3]
--!include prelude.lua
--!include now.lua
--!include change_config.lua

local was_paused = config.paused > 0
if lasts > 0 then
    if now + lasts <= config.paused then return config.paused - now end
    pause_until(now + lasts)
    keep_config('pause') -- and no worker is told: a request that comes is refused, and one that waits need not come sooner
    return config.paused - now
end
if not was_paused then return 0 end
-- A bucket that is empty at the end of an upstream's pause is so now, and its debt stays. A ramp begins now.
local ends, before = match(call('GET', REFUSED) or '', '^%d+ (%d+) %d+ (%d+)$')
local state = redis.pcall('GET', STATE) -- of a sliding log it is a list
state = type(state) == 'string' and state or ''
local head, us, rest = match(state, '^(t%d+ %d+ )(%d+)( .*)$')
if not head then head, us, rest = match(state, '^(u%d+ %d+ %d+ )(%d+)( .*)$') end
if ends and head and ends - now > 0 then
    call('SET', STATE, head .. int(max(us - (ends - now), before + 0, 0)) .. rest, 'KEEPTTL')
end
config.paused, config.resumed = 0, now
keep_config('resume')
tell()
return 1
