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
        local tat, last = now, 0
        if raw then
            local full, ahead, newest, of = match(raw, '^(%d+) 0 (%d+) 0 (%d+) (%d+)$')
            if not full or of - interval ~= 0 or full - ahead > now then
                joint = nil
                break
            end
            tat, last = max(full, now), full - ahead + newest
        elseif call('EXISTS', KEYS[3 * i - 2]) == 1 then
            joint = nil
            break
        end
        buckets[i] = {tat, last, burst, interval, count, period, version or '0'}
        joint = max(joint, tat + (cost - burst) * interval)
    end
    if joint and joint <= now + ARGV[2] then
        local answer = format('1 %d 0 %d', joint - now, joint)
        for i = 1, NUMBER do
            local tat, last, burst, interval = unpack(buckets[i])
            local new = max(tat, joint) + ARGV[6 * i + 2] * interval
            call('SET', KEYS[3 * i - 2], format('%d 0 %d 0 %d %d', new, new - now, max(last, joint) - now, interval),
                'PX', int(ceil((new + 1 - now + STEP_US) / 1000)))
            answer = answer .. format(' %d %d', max(0, floor((now - new) / interval + burst)), new - now)
        end
        for i = 1, stored and NUMBER or 0 do
            local _, _, burst, _, count, period, version = unpack(buckets[i])
            answer = answer .. format(' %s %s %s %s', burst, count, period, version)
        end
        return answer
    end
end
