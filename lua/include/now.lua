-- The one clock: the store's own, read once per script. Tests put a frozen clock in place of this file.
--
-- Gives now.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2] -- microseconds since 1970; whole numbers stay exact below 2^53
