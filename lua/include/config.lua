-- What is stored under one config key (see stored.lua), to be changed: reads it into `config`; keep_config() writes it.
--
-- A version outlives the rate that it came with, or an older program could undo the newer one's change once that has gone.
local config = {version = 0, expiry = 0, paused = 0, method = '-', count = 0, period = 0, size = 0, extra = 0, since = 0, note = ''}
local text = call('GET', KEYS[1])
if text then
    local version, expiry, paused, method, count, period, size, extra, since, note =
        match(text, '^(%d+) (%d+) (%d+) (%S+) (%d+) (%d+) (%d+) (%-?%d+) (%d+)\n(.*)$')
    config = {
        version = tonumber(version), expiry = tonumber(expiry), paused = tonumber(paused), method = method,
        count = count, period = period, size = size, extra = extra, since = tonumber(since), note = note,
    }
    if config.expiry > 0 and config.expiry <= now then config.method, config.expiry, config.note = '-', 0, '' end
    if config.paused <= now then config.paused = 0 end
end

-- Tells those who look (KEYS[2], one for all keys of a limit) that whoever waits may come at another time: us of the change,
-- and of the end of what is in force now. Kept for an hour, and until that end.
local function tell()
    local kept = max(3600000000, config.expiry - now + 60000000)
    call('SET', KEYS[2], format('%d %d', now, config.expiry), 'PX', int(ceil(kept / 1000)))
end

local function keep_config()
    local c = config
    if c.method == '-' and c.version == 0 and c.paused == 0 then
        call('DEL', KEYS[1])
        return
    end
    call('SET', KEYS[1], format('%d %d %d %s %d %d %d %d %d\n%s',
        c.version, c.expiry, c.paused, c.method, c.count, c.period, c.size, c.extra, c.since, c.note))
    local stays = c.version > 0 or (c.method ~= '-' and c.expiry == 0)
    if not stays then call('PEXPIRE', KEYS[1], int(ceil((max(c.expiry, c.paused) - now) / 1000))) end
end
