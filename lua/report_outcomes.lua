-- report_outcomes: tasks under a limit with a breaker have ended. After enough failures among the last of them the limit has the breaker's
-- rate, until a task succeeds that has its permit since then.
--
-- The rate is stored as if a person had stored it, with an end; what people store goes first, and nothing opens or closes then.
--
-- KEYS   1  config, see include/config_format.lua; 2  changes, see include/change_config.lua; 3  what was touched, see include/mark_for_recheck.lua;
--        4  history, see include/keep_change.lua; 5  key_settings, see include/change_config.lua
--        6  outcomes: "<the last tasks, the newest at the end: 1 failed, 0 succeeded; the first is a 1> <us at which the breaker has
--           stored its rate, or 0>"; 7  state; 8  slots
--        9  before: the state from before it opened, which holds again when it closes; 10  config of the whole limit
-- ARGV   1  succeeded   whole, >= 0: tasks since the last report, before the one that failed
--        2  failed      1: a task has failed; 0: none
--        3  granted     us at which the permit of the last task was good; 0: not known
--        4  most        whole, > 0: failures that open the breaker
--        5  of          whole, >= most: of how many tasks that ended last
--        6  count, 7 period, 8 size: of the breaker's token bucket, see include/read_limits.lua
--        9  note        text: of the breaker's rate
--        10 key         text: of the bucket; '' for the whole limit
-- Reply  0 if the breaker is closed now, 1 if it is open, 2 if it has opened now, 3 if it has closed now; us that it was open, of 3
-- Writes outcomes, for an hour; config, history and key_settings where it opens and closes: an hour longer than the last failure;
--        state and slots
local CONFIG_KEY, CHANGES, TOUCHED, HISTORY, KEY_SETTINGS, OUTCOMES, STATE, SLOTS, BEFORE, WHOLE_CONFIG = unpack(KEYS)
local succeeded, failed, granted, MOST, OF = ARGV[1] + 0, ARGV[2] == '1', ARGV[3] + 0, ARGV[4] + 0, ARGV[5] + 0
local count, period, size, NOTE, BUCKET = unpack(ARGV, 6, 10)
--!include prelude.lua
--!include now.lua
--!include change_config.lua

local FAR_US = 2^51 -- see include/algorithms.lua
local last, opened = match(call('GET', OUTCOMES) or ' 0', '^([01]*) (%d+)$')
opened = opened + 0
local is_open, is_new = opened > 0 and config.method ~= '-' and config.since == opened, false
last = string.sub(last .. string.rep('0', min(succeeded, OF)) .. (failed and '1' or ''), -OF)
if is_open and not failed then
    if granted > 0 and granted < opened then return {1, 0} end -- it began before
    config.method, config.since, config.resumed, config.expiry = '-', now, now, 0
    note_rate('')
    call('UNLINK', STATE, SLOTS, OUTCOMES)
    if call('EXISTS', BEFORE) == 1 then call('RENAME', BEFORE, STATE) end
    keep_config('unset')
    tell()
    return {3, int(now - opened)}
elseif failed then
    if is_open then
        config.expiry = now + HOUR_US
        write_config()
        tell()
    elseif select(2, string.gsub(last, '1', '')) >= MOST and config.method == '-' and not (BUCKET ~= '' and has_rate(call('GET', WHOLE_CONFIG))) then
        opened, is_open, is_new = now, true, true
        config.method, config.count, config.period, config.size, config.extra = 'token_bucket', count, period, size, 0
        config.since, config.expiry = now, now + HOUR_US
        note_rate(NOTE)
        -- The slots of the next second would lie a hundred tries ahead, and most of them come to nothing. What was taken from the limit's own bucket
        -- counts again when the breaker closes; that of the breaker is empty, so that its first try comes after one interval.
        call('UNLINK', SLOTS, BEFORE)
        if call('EXISTS', STATE) == 1 then call('RENAME', STATE, BEFORE) end
        local interval = period / count
        local full = min(now + ceil(size * interval), now + FAR_US)
        call('SET', STATE, format('t%d %d %d 0 0 %.17g %d', now, now, full, interval, now), 'PX', int(ceil((full - now + HOUR_US) / 1000)))
        keep_config('set')
        tell()
    end
end
last = match(last, '1.*') or ''
if last ~= '' or is_open then
    call('SET', OUTCOMES, format('%s %d', last, is_open and opened or 0), 'PX', int(HOUR_US / 1000))
else
    call('DEL', OUTCOMES)
end
return {is_new and 2 or is_open and 1 or 0, 0}
