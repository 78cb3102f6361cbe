-- The limits of the request: as the caller sent them, or as people have stored them; and the state of each.
--
-- Uses NUMBER, of limits; FIRST_LIMIT, where the first stands in ARGV; and of its own includes got, CONFIG, adapted_share and
-- algorithms. For limit i: KEYS[3i-2] its state, KEYS[3i-1] the config of its name, KEYS[3i] the config of its key (the
-- same where it has none), KEYS[3 NUMBER + i] its slots; from ARGV[FIRST_LIMIT + 6(i-1)] on
--   algorithm   text      the name of a file beside this one
--   count       permits   per period, whole, >= 1
--   period      us        whole, >= 1
--   burst       permits   whole, >= 1: the most that the limit holds
--   cost        permits   whole, >= 1, and no more than could ever be granted (checked by the caller)
--   extra       whole     what the algorithm takes besides, see its file
--
-- Gives limits, a table each; used, a set of the names of their algorithms.
--!include config_format.lua
--!include adaptive_rate.lua
--!include fetch_state_and_config.lua
local limits, used = {}, {}
for i = 1, NUMBER do
    local at = FIRST_LIMIT + 6 * (i - 1)
    local limit = {
        method = ARGV[at],
        state_key = KEYS[3 * i - 2],
        slots_key = KEYS[3 * NUMBER + i],
        raw = got[3 * i - 2],
        count = ARGV[at + 1] + 0, -- a number of a text, at half of the cost of tonumber
        period = ARGV[at + 2] + 0,
        burst = ARGV[at + 3] + 0,
        cost = ARGV[at + 4] + 0,
        extra = ARGV[at + 5] + 0,
        grant = now,
        behind = false,
        paused = false,
        stored = false,
        used_up = false,
        line = false,
        among = false,
        changed = false, -- there is something to write, though nothing is taken
        since = 0, -- slots from before this us were made for another rate,
        resumed = 0, -- slots from before this us for a pause that was ended
    }
    for part = 3 * i - 1, 3 * i do
        local text = got[part]
        if text and (part % 3 == 2 or text ~= got[part - 1]) then
--!include apply_stored_config.lua
        end
    end
    if limit.adapted and limit.method == 'token_bucket' then
        local share, since = adapted_share(now, unpack(limit.adapted))
        limit.period, limit.since = ceil(limit.period / share), max(limit.since, since)
    end
    limits[i], used[limit.method] = limit, true
end
--!include algorithms.lua
for i = 1, NUMBER do
    local limit = limits[i]
    local algorithm = algorithms[limit.method]
    limit.algorithm = algorithm
    if limit.in_shadow then
--!include let_pass_stored_shadow.lua
    elseif algorithm.letter then
        local state = limit.raw
        if not state and algorithm.letter ~= 'l' then state = call('LINDEX', limit.state_key, '0') end
        if type(state) == 'string' and string.sub(state, 1, 1) ~= algorithm.letter then
--!include changed_algorithm.lua
        end
    end
end
