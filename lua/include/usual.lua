-- The usual case without the machinery, at half of its cost: token buckets of whole intervals, nobody in line, nothing paused,
-- permits within the horizon. It answers and writes what token_bucket.lua would; whatever else is the case goes on below.
--!include got.lua
do
    local joint, buckets, stored = now, {}, false
    for i = 1, NUMBER do
        local at = 6 * i - 2
        local method, count, period, burst, extra = ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 5]
        local raw, config, own = got[3 * i - 2], got[3 * i - 1], got[3 * i]
        local version, expiry, paused
        if config and method ~= 'concurrency' and (not own or own == config) then -- places are no rate
            local algorithm, n, each, size, more
            version, expiry, paused, algorithm, n, each, size, more =
                match(config, '^(%d+) (%d+) (%d+) (%S+) (%d+) (%d+) (%d+) (%-?%d+)')
            if algorithm ~= '-' and (expiry == '0' or expiry - now > 0) then
                method, count, period, burst, extra, stored = algorithm, n, each, size, more, true
            else
                version = nil
            end
        elseif own then
            method = ''
        end
        local interval, cost = period / count, ARGV[at + 4]
        if method ~= 'token_bucket' or extra ~= '0' or interval % 1 ~= 0
            or paused and (paused - now > 0 or cost - burst > 0) then
            joint = nil
            break
        end
        local tat, last, since = now, 0, nil
        if raw then
            local full, ahead, newest, of, lent = match(raw, '^(%d+) 0 (%d+) 0 (%d+) (%d+) (%S+) %d+$')
            full = tonumber(full) -- once: each reckoning with a text reads it anew
            local written = full and full - ahead
            if not full or written > now or of - interval ~= 0 then
                joint = nil
                break
            end
            last = written + newest
            if full >= now then tat, since = full, lent end
        elseif call('EXISTS', KEYS[3 * i - 2]) == 1 then
            joint = nil
            break
        end
        buckets[i] = {tat, last, burst, interval, since, count, period, version or '0'}
        joint = max(joint, tat + (cost - burst) * interval)
    end
    -- Taken ahead, permits may lapse in one bucket while another is waited for: not where there are slots to wait in.
    for i = 1, joint and joint > now and NUMBER > 1 and ARGV[1] ~= '' and NUMBER or 0 do
        if joint - buckets[i][1] >= buckets[i][4] then
            joint = nil
            break
        end
    end
    if joint and joint <= now + ARGV[2] then
        local answer = format('1 %d 0 %d', joint - now, joint)
        for i = 1, NUMBER do
            local bucket = buckets[i]
            local burst, interval, since = bucket[3], bucket[4], bucket[5]
            local new = max(bucket[1], joint) + ARGV[6 * i + 2] * interval
            local state = format(since and '%d 0 %d 0 %d %d %s %d' or '%d 0 %d 0 %d %d %d %d',
                new, new - now, max(bucket[2], joint) - now, interval, since or now, interval)
            call('SET', KEYS[3 * i - 2], state, 'PX', format('%d', ceil((new + 1 - now + STEP_US) / 1000)))
            answer = answer .. format(' %d %d', max(0, floor((now - new) / interval + burst)), new - now)
        end
        for i = 1, stored and NUMBER or 0 do
            local bucket = buckets[i]
            answer = answer .. format(' %s %s %s %s', bucket[3], bucket[6], bucket[7], bucket[8])
        end
        return answer
    end
end
