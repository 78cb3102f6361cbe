-- What people have put in the store for a limit: a rate in the place of the code's, and a pause.
--
-- config key: string "<version> <until us> <paused us> <algorithm> <count> <period> <size> <extra> <since us> <resumed us>", then
-- a line feed and what only clients read. `algorithm` is - where there is no rate; `since` is when the rate was set or taken
-- away. One for the limit under its name, one for each of its keys, which goes first. What people put there stays: it expires
-- by itself only if it was given an end, and then an hour later, until when those who wait have come.
local CONFIG = '^(%d+) (%d+) (%d+) (%S+) (%d+) (%d+) (%d+) (%-?%d+) (%d+) (%d+)'

-- Puts into `limit` what is in force for it, by the text of a config key. False: an algorithm that is not in this script.
local function put_in_force(limit, now, text)
    local version, expiry, paused, method, count, period, size, extra, since, resumed = match(text, CONFIG)
    if paused - now > 0 then limit.paused = max(limit.paused or 0, tonumber(paused)) end
    local ended = expiry ~= '0' and expiry - now <= 0
    if expiry ~= '0' and not ended then limit.ends = min(limit.ends or expiry, tonumber(expiry)) end
    limit.since = max(limit.since, tonumber(ended and expiry or since))
    limit.resumed = max(limit.resumed, tonumber(resumed))
    if method == '-' or ended then return true end
    if (method == 'concurrency') ~= (limit.method == 'concurrency') then return true end -- places are no rate
    limit.method, limit.algorithm = method, algorithms[method]
    limit.count, limit.burst = tonumber(count), tonumber(size)
    if method ~= 'concurrency' then limit.period = tonumber(period) end -- holders renew their leases by the code's length
    limit.extra, limit.version, limit.stored = tonumber(extra), tonumber(version), true
    return limit.algorithm ~= nil
end
