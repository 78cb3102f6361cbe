-- A limit may change its algorithm, in the code or in the store. The new one finds a state that the other one has written: the
-- permits that are in use by it count as taken, and the time at which they would have come back counts no more.
--
-- The first letter of a state says whose it is (`letter` of each algorithm); a token bucket's begins with a figure, and a sliding
-- log is a list. Places (concurrency) have a key of their own.
--
-- Uses STEP_US; changed_at, see algorithms.lua.
-- Gives read_other(limit, now): if the state is another algorithm's, forgets it, and sets
--   limit.in_use      permits that are in use by it
--   limit.in_use_at   us at which they count as taken: at the change; or when the newest is good, if it was granted ahead
local function read_other(limit, now)
    local letter = limit.algorithm.letter
    if type(limit.raw) == 'string' then -- else nothing, or its own, see read_keys.lua
        if letter == match(limit.raw, '^%a?') then return end
    elseif not letter or call('EXISTS', limit.state_key) == 0 then
        return -- nothing, a log for a log, or places
    end

    -- How many permits were in use at the change, us of the newest of them, and us of the change.
    local function in_use()
        local function at(written, newest) -- the clock may have stepped back since
            return written - now > STEP_US and newest - (written - now) or newest, changed_at(limit, now, written)
        end
        if not limit.raw then
            local total, newest, offset, written = match(call('LINDEX', limit.state_key, 0), '(%d+) (%d+) (%d+) (%d+)')
            return tonumber(total), at(tonumber(written), newest - offset)
        end
        local number, letter, numbers = {}, match(limit.raw, '^(%a?)(.*)')
        for each in string.gmatch(numbers, '%S+') do number[#number + 1] = tonumber(each) or 0 end
        if letter == '' then -- tat, and how far it lay ahead when it was written
            local newest, changed = at(number[1] - number[3], number[1] - number[3] + number[5])
            return ceil(max(0, min(number[1] - changed, number[3])) / number[6]), newest, changed
        end
        if letter == 'f' then return number[2], at(number[3], number[6]) end
        if letter == 's' then return number[7] - number[1], at(number[3], number[5]) end
        if letter == 'u' then
            local newest, changed = at(number[3], number[5])
            return number[1] > changed and limit.burst or 0, newest, changed
        end
        local sum = 0
        for i = 8, #number do sum = sum + number[i] end
        return sum, at(number[1], number[6] - number[3])
    end

    local permits, newest, changed = in_use()
    limit.in_use, limit.in_use_at = max(0, min(limit.burst, permits)), permits > 0 and max(changed, newest) or now
    limit.raw, limit.changed = false, true
end
