-- What is stored for a limit or for one of its keys, to be changed.
--
-- A version stays when the rate that it came with has ended: an older program could undo the newer one's change otherwise.
--
-- Uses CONFIG_KEY; CONFIG and ADAPTED, see config_format.lua; CHANGES, one key for a limit and all of its keys; TOUCHED and BUCKET, which touch takes (mark_for_recheck.lua);
-- HISTORY and NOTE, the author and reason, for keep_change (keep_change.lua); KEY_SETTINGS.
--
-- key_settings key, one for each limit: sorted set, "p" (a pause) or "r" (a rate) and the key of a bucket that has one of its own -> us
-- at which it ends, ENDLESS if it has no end. Expires with the last of them.
--
-- Gives config, a table, and its text; HOUR_US; has_rate(text), whether a rate is stored in a config (places are none); note_rate(note), of the rate that
-- is stored now; pause_until(us), which notes the author of the pause; write_config(), which writes it; keep_config(verb), which writes it, and the
-- change; tell(), which tells the requests that wait.
--!include config_format.lua
local config = {version = 0, expiry = 0, paused = 0, method = '-', count = 0, period = 0, size = 0, extra = 0, since = 0,
    resumed = 0, note = '', mark = '', adapted = nil}
local text = call('GET', CONFIG_KEY)

local function has_rate(stored)
    local _, expiry, _, method = match(stored or '', CONFIG)
    return method and method ~= '-' and method ~= 'concurrency' and (expiry == '0' or expiry - now > 0)
end

-- The note of a rate names its author, and in `paused` the author of a pause, which stays.
local function note_rate(note)
    local paused = config.paused > now and config.note ~= '' and cjson.decode(config.note).paused
    if paused then
        note = cjson.decode(note ~= '' and note or '{}')
        note.paused = paused
        note = cjson.encode(note)
    end
    config.note = note
end

if text then
    local version, expiry, paused, method, count, period, size, extra, since, resumed, note =
        match(text, CONFIG .. '[^\n]*\n(.*)$')
    config = {
        version = tonumber(version), expiry = tonumber(expiry), paused = tonumber(paused), method = method,
        count = count, period = period, size = size, extra = extra, since = tonumber(since),
        resumed = tonumber(resumed), note = note, mark = match(version, '^0%d') and '0' or '',
    }
    local reduced, before, recover, least = match(text, ADAPTED)
    if reduced and reduced + 2 * recover > now then config.adapted = {reduced + 0, before + 0, recover + 0, least + 0} end
    if config.expiry > 0 and config.expiry <= now then
        config.method, config.since, config.expiry = '-', config.expiry, 0
        note_rate('')
    end
    if config.paused <= now then config.paused = 0 end
end

local HOUR_US, ENDLESS = 3600000000, 9007199254740992

--!include mark_for_recheck.lua
--!include keep_change.lua
-- Tasks that wait may have their turns at other times now. Workers look at CHANGES: us of this change, then each end of what is
-- stored that is to come. It is kept for an hour after the last of them.
local function tell()
    local told, last = int(now), max(now, config.expiry)
    for at in string.gmatch(string.match(call('GET', CHANGES) or '', ' .*') or '', '%d+') do
        if at - now > 0 and at - config.expiry ~= 0 then told, last = told .. ' ' .. at, max(last, at) end
    end
    if config.expiry > 0 then told = told .. ' ' .. int(config.expiry) end
    call('SET', CHANGES, told, 'PX', int(ceil((last - now + HOUR_US) / 1000)))
    touch(TOUCHED, BUCKET)
end

local function pause_until(us)
    local note = cjson.decode(config.note ~= '' and config.note or '{}')
    note.paused = cjson.decode(NOTE)
    config.paused, config.note = us, cjson.encode(note)
end

local function write_config()
    local c = config
    if BUCKET ~= '' then
        local rate_ends = c.method == '-' and 0 or c.expiry == 0 and ENDLESS or c.expiry
        call('ZADD', KEY_SETTINGS, int(c.paused), 'p' .. BUCKET, int(rate_ends), 'r' .. BUCKET)
        call('ZREMRANGEBYSCORE', KEY_SETTINGS, '-inf', int(now))
        local last = call('ZRANGE', KEY_SETTINGS, -1, -1, 'WITHSCORES')[2] or now
        call('PEXPIRE', KEY_SETTINGS, int(ceil((last - now) / 1000)))
    end
    local adapted = c.adapted and format('~%d %d %d %d', unpack(c.adapted)) or ''
    local kept = c.mark .. format('%d %d %d %s %d %d %d %d %d %d%s\n', c.version, c.expiry, c.paused, c.method, c.count, c.period,
        c.size, c.extra, c.since, c.resumed, adapted) .. c.note
    call('SET', CONFIG_KEY, kept)
    local stays = c.version > 0 or c.mark ~= '' or (c.method ~= '-' and c.expiry == 0)
    local whole = c.adapted and c.adapted[1] + 2 * c.adapted[3] or 0 -- us at which the rate is what it was
    if not stays then call('PEXPIRE', CONFIG_KEY, int(ceil((max(c.expiry, c.paused, whole, now) - now + HOUR_US) / 1000))) end
    return kept
end

local function keep_config(verb)
    keep_change(HISTORY, verb, BUCKET, NOTE, text or '', write_config())
end
