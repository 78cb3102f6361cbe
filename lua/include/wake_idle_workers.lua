-- Notifies idle workers, which then look at the lots. If the store's user may not publish, no worker is notified: idle workers look
-- every few seconds all the same.
--
-- Gives wake(key): of the store that `key` is in, which is what is published.
local function wake(key)
    redis.pcall('PUBLISH', (match(key, '^.-:v%d+:') or '') .. 'wake', key)
end
