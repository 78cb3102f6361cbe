-- What is stored under one config key (see stored.lua), to be changed: reads it into `config`; keep_config() writes it.
--
-- A version outlives the rate that it came with, or an older program could undo the newer one's change once that has gone.
local config = {version = 0, expiry = 0, paused = 0, method = '-', count = 0, period = 0, size = 0, extra = 0, since = 0,
    resumed = 0, note = ''}
local text = call('GET', KEYS[1])
if text then
    local version, expiry, paused, method, count, period, size, extra, since, resumed, note =
        match(text, '^(%d+) (%d+) (%d+) (%S+) (%d+) (%d+) (%d+) (%-?%d+) (%d+) (%d+)\n(.*)$')
    config = {
        version = tonumber(version), expiry = tonumber(expiry), paused = tonumber(paused), method = method,
        count = count, period = period, size = size, extra = extra, since = tonumber(since),
        resumed = tonumber(resumed), note = note,
    }
    if config.expiry > 0 and config.expiry <= now then
        config.method, config.since, config.expiry, config.note = '-', config.expiry, 0, ''
    end
    if config.paused <= now then config.paused = 0 end
end

local HOUR_US = 3600000000

--!include touch.lua
-- Tells those who look (KEYS[2], one for all keys of a limit; KEYS[3], what was touched, of BUCKET) that whoever waits may come at another time: us of the change,
-- then of each end of what is stored that is to come. Kept for an hour after the last of them.
local function tell()
    local told, last = int(now), max(now, config.expiry)
    for at in string.gmatch(string.match(call('GET', KEYS[2]) or '', ' .*') or '', '%d+') do
        if at - now > 0 and at - config.expiry ~= 0 then told, last = told .. ' ' .. at, max(last, at) end
    end
    if config.expiry > 0 then told = told .. ' ' .. int(config.expiry) end
    call('SET', KEYS[2], told, 'PX', int(ceil((last - now + HOUR_US) / 1000)))
    touch(KEYS[3], BUCKET)
end

local function keep_config()
    local c = config
    call('SET', KEYS[1], format('%d %d %d %s %d %d %d %d %d %d\n%s', c.version, c.expiry, c.paused, c.method, c.count,
        c.period, c.size, c.extra, c.since, c.resumed, c.note))
    local stays = c.version > 0 or (c.method ~= '-' and c.expiry == 0)
    if not stays then call('PEXPIRE', KEYS[1], int(ceil((max(c.expiry, c.paused, now) - now + HOUR_US) / 1000))) end
end
