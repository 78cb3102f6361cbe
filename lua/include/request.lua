-- Reads the request from KEYS and ARGV: its limits, each with its algorithm.
--
-- For limit i: KEYS[2i-1] its state, KEYS[2i] its slots; from ARGV[FIRST_LIMIT + 6(i-1)] on
--   algorithm   text      the name of a file beside this one
--   count       permits   per period, whole, >= 1
--   period      us        whole, >= 1
--   burst       permits   whole, >= 1: the most that the limit holds
--   cost        permits   whole, >= 1, and no more than could ever be granted (checked by the caller)
--   extra       whole     what the algorithm takes besides, see its file
local limits = {}
for i = 1, NUMBER do
    local at = FIRST_LIMIT + 6 * (i - 1)
    limits[i] = {
        algorithm = algorithms[ARGV[at]],
        state_key = KEYS[2 * i - 1],
        slots_key = KEYS[2 * i],
        count = tonumber(ARGV[at + 1]),
        period = tonumber(ARGV[at + 2]),
        burst = tonumber(ARGV[at + 3]),
        cost = tonumber(ARGV[at + 4]),
        extra = tonumber(ARGV[at + 5]),
        grant = now,
    }
end
