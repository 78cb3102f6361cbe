-- Reads the request from KEYS and ARGV: its limits, each with its algorithm, and what is stored for it in their place.
--
-- For limit i of NUMBER: KEYS[3i-2] its state, KEYS[3i-1] the config of its name, KEYS[3i] the config of its key (the same where
-- it has none), KEYS[3 NUMBER + i] its slots; from ARGV[FIRST_LIMIT + 6(i-1)] on
--   algorithm   text      the name of a file beside this one
--   count       permits   per period, whole, >= 1
--   period      us        whole, >= 1
--   burst       permits   whole, >= 1: the most that the limit holds
--   cost        permits   whole, >= 1, and no more than could ever be granted (checked by the caller)
--   extra       whole     what the algorithm takes besides, see its file
--
-- Leaves `limits`. May end the script with the error "LOAD <algorithm>": the caller asks again with that one put in.
--!include got.lua
--!include stored.lua
--!include in_use.lua
local limits = {}
for i = 1, NUMBER do
    local at = FIRST_LIMIT + 6 * (i - 1)
    local limit = {
        method = ARGV[at],
        algorithm = algorithms[ARGV[at]],
        state_key = KEYS[3 * i - 2],
        slots_key = KEYS[3 * NUMBER + i],
        raw = got[3 * i - 2],
        count = tonumber(ARGV[at + 1]),
        period = tonumber(ARGV[at + 2]),
        burst = tonumber(ARGV[at + 3]),
        cost = tonumber(ARGV[at + 4]),
        extra = tonumber(ARGV[at + 5]),
        grant = now,
        since = 0, -- a line from before that was made for another rate,
        resumed = 0, -- or for a pause that was ended
    }
    local config, own = got[3 * i - 1], got[3 * i]
    if config and not put_in_force(limit, now, config) or own and own ~= config and not put_in_force(limit, now, own) then
        return redis.error_reply('LOAD ' .. limit.method)
    end
    read_other(limit, now)
    limits[i] = limit
end
