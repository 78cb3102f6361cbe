-- What is stored for a limit takes the place of what the caller sent: a rate, and a pause.
--
-- Uses CONFIG and ADAPTED, see config_format.lua; adapted_share; now; limit, into which it puts what is stored; text, of a config.
local version, expiry, paused, method, count, period, size, extra, since, resumed = match(text, CONFIG)
expiry, paused = expiry + 0, paused + 0
local ended = expiry > 0 and expiry <= now
if limit.method ~= 'concurrency' and match(version, '^0%d') then limit.in_shadow = true end
if paused > now then limit.paused = max(limit.paused or 0, paused) end
if expiry > now then limit.ends = min(limit.ends or expiry, expiry) end
limit.since = max(limit.since, ended and expiry or since + 0)
limit.resumed = max(limit.resumed, resumed + 0)
if method ~= '-' and not ended and (method == 'concurrency') == (limit.method == 'concurrency') then -- places are no rate
    limit.method, limit.count, limit.burst = method, count + 0, size + 0
    if method ~= 'concurrency' then limit.period = period + 0 end -- holders renew their leases by the code's length
    -- What the code's limit sets aside stays so, in proportion, where the stored one is such a bucket.
    limit.code = limit.code or limit.extra
    limit.extra = limit.code < -1 and method == 'token_bucket' and extra == '0' and limit.code or extra + 0
    limit.version, limit.stored = version + 0, true
end
local reduced, before, recover, least = match(text, ADAPTED)
if reduced then limit.adapted = {reduced + 0, before + 0, recover + 0, least + 0} end
