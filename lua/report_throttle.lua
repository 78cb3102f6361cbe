-- report_throttle: an upstream has refused a call, usually with status 429: pause the limit, and let its backlog leave at the rate afterwards.
--
-- Where the upstream has not said for how long, the first pause lasts as long as a permit takes, a second at least. It doubles if one of
-- the first ten calls after it is refused as well. A call whose permit is older than the end of a pause says nothing new: it was on its
-- way. A shorter pause never shortens one that is there. A token bucket is empty when the pause ends: no burst meets the upstream.
--
-- KEYS   four of the limit, see include/read_limits.lua; then changes, touched, history and key_settings, see include/change_config.lua; then refused:
--        "<us it began> <us it ends> <us it lasts> <tat us before it>" of the last pause that a report has begun, see pause.lua
-- ARGV   1  retry     us, > 0: for how long the upstream wants no calls; 0: it has not said
--        2  granted   us: when the permit of the call was good; 0: now
--        3  interval  us, > 0: in which a permit comes back; 0: the limit is not known, and its bucket stays as it is
--        4  most      us: the longest pause, if the upstream has not said
--        5  jitter    millionths of the pause that are added, if the upstream has not said
--        6  key       text: of the bucket that is paused; '' for the whole limit
--        7  note      text: author and reason, for the history
--        8  ramp      us, > 0: over which the rate rises from a tenth to the whole after the pause; 0: at once
--        9  slow      text: the note of that rate, as set_rate.lua stores it
--        10 takes     1: takes the permits with which the refused task can start after the pause, if that is near; 0: none
--        then six of the limit, see include/read_limits.lua
-- Reply  us that the limit is paused for, from now; us until the permits are good that it took (-1: none), and us at which they are
-- Writes config, history, refused: an hour longer than the pause; the state, the slots
local CHANGES, TOUCHED, HISTORY, KEY_SETTINGS, REFUSED = KEYS[5], KEYS[6], KEYS[7], KEYS[8], KEYS[9]
local STATE, WHOLE_CONFIG, CONFIG_KEY = KEYS[1], KEYS[2], KEYS[3]
local RETRY_US, GRANTED, INTERVAL_US, MOST_US, JITTER = ARGV[1] + 0, ARGV[2] + 0, ARGV[3] + 0, ARGV[4] + 0, ARGV[5] + 0
local BUCKET, NOTE, TAKES = ARGV[6], ARGV[7], ARGV[10] == '1'
local RAMP_US, SLOW = ARGV[8] + 0, ARGV[9]
local NUMBER, FIRST_LIMIT = 1, 11
local SHORT_US = 1000000 -- tasks that come for their slots meanwhile are held for so long; they are parked for a longer pause
local CORRECTS = true -- see include/algorithms.lua
local FIRST_US, PROBES = 1000000, 10
--!include prelude.lua
--!include now.lua
--!include change_config.lua
--!include read_limits.lua
--!include load_line_functions.lua
--!include wake_idle_workers.lua

local began, ends, lasted, before = match(call('GET', REFUSED) or '', '^(%d+) (%d+) (%d+) (%d+)$')
if began then
    began, ends, lasted = began + 0, ends + 0, lasted + 0
    if config.resumed > began then ends = min(ends, config.resumed) end -- by hand
end
local granted, first = GRANTED > 0 and GRANTED or now, max(FIRST_US, INTERVAL_US)
local lasts, pause = first, RETRY_US
if RETRY_US == 0 then
    if ends and granted < ends then
        lasts = 0
    elseif ends and granted <= ends + PROBES * INTERVAL_US then
        lasts = max(first, min(2 * lasted, MOST_US))
    end
    pause = floor(lasts * (1 + JITTER / 1000000))
end
local until_us, paused = now + pause, max(0, config.paused - now)
if until_us > max(now, config.paused) then
    -- Of many refusals in a row the history keeps the last one.
    local verb, of, note = match(call('LINDEX', HISTORY, 0) or '', '^%d+ (%a+) (%d+) %d+ %d+\n(.*)$')
    if verb == 'throttled' and string.sub(note, 1, tonumber(of)) == BUCKET and tonumber(of) == #BUCKET then
        call('LTRIM', HISTORY, 1, '-1')
    end
    local is_ours = config.method == 'warm_up' and config.extra + 0 < 0
    if RAMP_US > 0 and (is_ours or config.method == '-' and not has_rate(call('GET', WHOLE_CONFIG))) then
        -- For as long as the ramp the limit is a bucket that warms up, as if that were stored; what operators store stays.
        config.method, config.count, config.period = 'warm_up', ARGV[FIRST_LIMIT + 1], ARGV[FIRST_LIMIT + 2]
        config.size, config.extra, config.since = ARGV[FIRST_LIMIT + 3], -RAMP_US, now
        config.expiry, config.note = until_us + RAMP_US, SLOW
        local most = RAMP_US * config.count / config.period * (0.5 + 2 / 11) -- it is cold, see algorithms/warm_up.lua
        call('SET', STATE, format('u%d %d 0 %d %.17g %d %d %d', now, now, until_us, most, config.count, config.period, -RAMP_US),
            'PX', int(ceil((pause + RAMP_US + STEP_US) / 1000)))
        tell()
    end
    pause_until(until_us)
    paused = pause
    keep_config('throttled')
    if pause > SHORT_US then wake(REFUSED) end -- workers give up permits that are good during the pause
    if not ends or ends <= now then
        local state = redis.pcall('GET', STATE) -- of a sliding log it is a list
        before = tonumber(match(type(state) == 'string' and state or '', '^t%d+ %d+ (%d+)') or 0)
    end
    call('SET', REFUSED, format('%d %d %d %d', now, until_us, lasts, before), 'PX', int(ceil((pause + HOUR_US) / 1000)))
end

local limit = limits[1]
if INTERVAL_US == 0 or config.method == 'warm_up' or limit.method ~= 'token_bucket' or limit.in_shadow then return {int(paused), '-1', '0'} end
look(limit, now, '')
local advance, tat, rem = algorithms.token_bucket.advance, limit.tat, limit.rem
local us, more = advance(limit, now + paused, 0, limit.burst - 1)
if us > limit.tat then limit.tat, limit.rem = us, more end
us, more = advance(limit, limit.tat, limit.rem, limit.cost)
local at = max(now, algorithms.token_bucket.admission(limit, us, more))
local takes = TAKES and limit.extra >= -1 and at <= now + SHORT_US
if takes then
    -- It has the first permit after the pause. Tasks that come for their slots find none, and move all slots behind theirs.
    limit.tat, limit.rem, limit.newest = us, more, max(limit.newest, at)
end
if limit.tat ~= tat or limit.rem ~= rem then limit.algorithm.write(limit, now) end
return {int(paused), int(takes and at - now or -1), int(takes and at or 0)}
