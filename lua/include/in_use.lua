-- A limit may change its algorithm, in the code or in the store. Tokens are kept then, not time: what the other algorithm has
-- left in the state is counted as permits that are in use, and the new one begins with so many taken.
--
-- The first letter of a state says whose it is; a bucket's begins with a figure, and a sliding log is a list. Places
-- (concurrency) have a key of their own.
local LETTERS = {
    token_bucket = '',
    leaky_bucket = '',
    fixed_window = 'f',
    sliding_window = 'w',
    stepped_bucket = 's',
    warm_up = 'u',
}

local function in_use(limit, now)
    if not limit.raw then return tonumber(match(call('LINDEX', limit.state_key, 0), '%d+')) end
    local letter, first, second, third = match(limit.raw, '^(%a?)(%-?%d+) (%S+) (%S+)')
    if letter == '' then -- tat, and how far it lay ahead when it was written
        return ceil(max(0, min(first - now, tonumber(third))) / match(limit.raw, '%S+$'))
    end
    if letter == 'f' then return tonumber(second) end
    if letter == 's' then return limit.burst - first end
    if letter == 'u' then return first - now > 0 and limit.burst or 0 end
    local sum = 0
    for counter in string.gmatch(match(limit.raw, '^w%d+ %d+ %d+ %d+ %d+(.*)'), '%d+') do sum = sum + counter end
    return sum
end

-- If the state is another algorithm's: sets `in_use`, permits, and forgets it.
local function read_other(limit, now)
    local letter = LETTERS[limit.method]
    if limit.raw then
        if letter == match(limit.raw, '^%a?') then return end
    elseif not letter or call('EXISTS', limit.state_key) == 0 then
        return -- nothing, a log for a log, or places
    end
    limit.in_use = max(0, min(limit.burst, in_use(limit, now)))
    limit.raw, limit.changed = false, true
end
