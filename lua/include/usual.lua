-- The usual case without the machinery, at half of its cost: one token bucket of whole intervals, nobody in line, a
-- permit within the horizon. It answers and writes what token_bucket.lua would; whatever else is the case goes on below.
if #KEYS == 2 and ARGV[4] == 'token_bucket' and ARGV[9] == '0' then
    local interval, burst = ARGV[6] / ARGV[5], ARGV[7]
    local tat, usual = now, interval % 1 == 0
    local raw = usual and call('GET', KEYS[1])
    if raw then
        local full, rem, written, cursor = match(raw, '(%d+) (%d+) (%d+) (%d+)')
        usual = rem == '0' and cursor == '0' and written - now <= 0
        tat = max(full, now)
    end
    local new = tat + ARGV[8] * interval
    local joint = max(now, new - burst * interval)
    if usual and joint <= now + ARGV[2] then
        call('SET', KEYS[1], format('%d 0 %d 0', new, now), 'PX', int(ceil((new + 1 - now) / 1000)))
        local left = max(0, floor((now - new) / interval + burst))
        return format('1 %d 0 %d %d %d', joint - now, joint, left, new - now)
    end
end
