-- Rings the bell for workers that have nothing to do: one that hears it looks at the lots. Where a user may not publish nobody hears
-- it; they look every some seconds all the same.
--
-- Gives ring(key): of the store that `key` is in, which is what is published.
local function ring(key)
    redis.pcall('PUBLISH', (match(key, '^.-:v%d+:') or '') .. 'bell', key)
end
