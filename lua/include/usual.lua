-- The usual case without the machinery, at half of its cost: token buckets of whole intervals, nobody in line, nothing paused,
-- permits within the horizon. It answers and writes what token_bucket.lua would; whatever else is the case goes on below.
--!include got.lua
do
    local joint, tats, newest, counts, periods, bursts, tail = now, {}, {}, {}, {}, {}, false
    for i = 1, NUMBER do
        local at = 6 * i - 2
        local method, count, period, burst, extra = ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 5]
        local raw, config, own = got[3 * i - 2], got[3 * i - 1], got[3 * i]
        local version, expiry, paused = '0', '0', 0
        if config and (not own or own == config) then
            version, expiry, paused, method, count, period, burst, extra =
                match(config, '^(%d+) (%d+) (%d+) (%S+) (%d+) (%d+) (%d+) (%-?%d+)')
            tail = tail or {}
            tail[i] = version
        elseif own then
            method = ''
        end
        if method ~= 'token_bucket' or extra ~= '0' or period % count ~= 0 or expiry ~= '0' or paused - now > 0
            or config and ARGV[at + 4] - burst > 0 then
            joint = nil
            break
        end
        local tat, last = now, 0
        if raw then
            local full, written, at_last, of, each = match(raw, '^b(%d+) 0 (%d+) 0 (%d+) (%d+) (%d+)$')
            if not full or written - now > 0 or of ~= count or each ~= period then
                joint = nil
                break
            end
            tat, last = max(full, now), at_last
        elseif call('EXISTS', KEYS[3 * i - 2]) == 1 then
            joint = nil
            break
        end
        tats[i], newest[i], counts[i], periods[i], bursts[i] = tat, last, count, period, burst
        joint = max(joint, tat + (ARGV[at + 4] - burst) * (period / count))
    end
    if joint and joint <= now + ARGV[2] then
        local answer = format('1 %d 0 %d', joint - now, joint)
        for i = 1, NUMBER do
            local interval = periods[i] / counts[i]
            local new = max(tats[i], joint) + ARGV[6 * i + 2] * interval
            call('SET', KEYS[3 * i - 2],
                format('b%d 0 %d 0 %d %s %s', new, now, max(newest[i], joint), counts[i], periods[i]),
                'PX', int(ceil((new + 1 - now) / 1000)))
            answer = answer .. format(' %d %d', max(0, floor((now - new) / interval + bursts[i])), new - now)
        end
        for i = 1, tail and NUMBER or 0 do
            answer = answer .. format(' %s %s %s %s', bursts[i], counts[i], periods[i], tail[i] or '0')
        end
        return answer
    end
end
