-- The usual case without the machinery, at half of its cost: token buckets of whole intervals, nobody in line, permits
-- within the horizon. It answers and writes what token_bucket.lua would; whatever else is the case goes on below.
do
    local joint, tats, newest = now, {}, {}
    for i = 1, NUMBER do
        local at = 6 * i - 2
        local interval = ARGV[at + 2] / ARGV[at + 1]
        if ARGV[at] ~= 'token_bucket' or ARGV[at + 5] ~= '0' or interval % 1 ~= 0 then
            joint = nil
            break
        end
        local tat, last = now, 0
        local raw = call('GET', KEYS[2 * i - 1])
        if raw then
            local full, rem, written, cursor, at_last = match(raw, '(%d+) (%d+) (%d+) (%d+) (%d+)')
            if rem ~= '0' or cursor ~= '0' or written - now > 0 then
                joint = nil
                break
            end
            tat, last = max(full, now), at_last
        end
        tats[i], newest[i] = tat, last
        joint = max(joint, tat + (ARGV[at + 4] - ARGV[at + 3]) * interval)
    end
    if joint and joint <= now + ARGV[2] then
        local answer = format('1 %d 0 %d', joint - now, joint)
        for i = 1, #tats do
            local at = 6 * i - 2
            local interval, burst = ARGV[at + 2] / ARGV[at + 1], ARGV[at + 3]
            local new = max(tats[i], joint) + ARGV[at + 4] * interval
            call('SET', KEYS[2 * i - 1], format('%d 0 %d 0 %d', new, now, max(newest[i], joint)), 'PX', int(ceil((new + 1 - now) / 1000)))
            answer = answer .. format(' %d %d', max(0, floor((now - new) / interval + burst)), new - now)
        end
        return answer
    end
end
