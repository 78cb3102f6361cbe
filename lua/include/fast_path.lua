-- The most frequent requests, decided at less than half of the cost: no function is made for them, and no command is sent that they
-- do not need. Each limit is a token bucket of whole intervals, a sliding log or places, one a holder; no request waits, nothing is paused, and
-- what is stored has the algorithm of the code. Then a request is allowed here if its permits lie within the horizon; those of a log
-- and of places have to be there now. A request of one bucket is refused here if it keeps no slot. The answer and what is written
-- are those of the algorithms' own files. Every other request goes on below this file.
--
-- Uses NUMBER; FIRST_LIMIT; id, HORIZON_US and CLAIM_US as in acquire.lua; got; CONFIG; STEP_US.
-- Gives the reply of what it decides (see reply.lua): it ends the script. Puts into got what it has read of logs and places.
--!include config_format.lua
--!include fetch_state_and_config.lua
do
    local joint, limits, stored, buckets_only, now_text = now, {}, false, true, nil
    -- Pass one: each limit as it is, and nothing written. `joint` is nil once a limit needs more than there is here.
    for i = 1, NUMBER do
        local at = FIRST_LIMIT + 6 * (i - 1)
        local method, count, period, burst, extra = ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 5]
        local raw, config, own = got[3 * i - 2], got[3 * i - 1], got[3 * i]
        local version, expiry, paused
        if config and method ~= 'concurrency' and (not own or own == config) then -- places are no rate
            local algorithm, n, each, size, more
            version, expiry, paused, algorithm, n, each, size, more = match(config, CONFIG)
            if version < '1' and version ~= '0' or string.find(config, '~', 1, true) then -- in shadow, or an adapted rate
                method = ''
            elseif algorithm == '-' or expiry ~= '0' and expiry - now <= 0 then
                version = nil
            elseif algorithm == method and extra + 1 >= 0 then -- else the call leaves something to others
                count, period, burst, extra, stored = n, each, size, more, true
            else -- its file may not be in this script
                method = ''
            end
        elseif own or config then
            method = ''
        end
        local cost = ARGV[at + 4]
        if paused and (paused - now > 0 or cost - burst > 0) then
            joint = nil
        elseif method == 'token_bucket' and extra == '0' then
            local interval, tat, last, rest = period / count, now, 0, nil
            if interval % 1 ~= 0 then
                joint = nil
                break
            elseif raw then
                local written, newest, full, kept, of = match(raw, '^t(%d+) (%d+) (%d+) 0 0( (%d+) .+)')
                if not written or written - now > 0 or of - interval ~= 0 then
                    joint = nil
                    break
                end
                last, full = newest + 0, full + 0
                if full >= now then tat, rest = full, kept end
            elseif call('EXISTS', KEYS[3 * i - 2]) == 1 then
                joint = nil
                break
            end
            limits[i] = {method, tat, last, burst, interval, rest, version and {burst, count, period, version}}
            joint = max(joint, tat + (cost - burst) * interval)
        elseif method == 'sliding_log' and not raw then
            now_text, buckets_only = now_text or int(now), false
            local log = call('LRANGE', KEYS[3 * i - 2], '0', '6') -- its header, and three entries
            got[3 * i - 2] = log
            local written, newest, total, offset, began = '0', '0', 0, '0', '0'
            if log[1] then written, newest, total, offset, began = match(log[1], '^l(%d+) (%d+) 0 (%d+) (%d+) (%d+)$') end
            if not written then
                joint = nil
                break
            end
            local here, gone, left = offset == '0' and now or now + offset, 0, count - total - cost
            local passed = here - period
            while log[2 + 2 * gone] and log[2 + 2 * gone] - passed <= 0 do
                left, gone = left + log[3 + 2 * gone], gone + 1
            end
            if left < 0 or gone == 3 or written - now > 0 or newest - now > 0 then
                joint = nil
                break
            end
            local header = format('l%s %s 0 %d %s %s', now_text, now_text, count - left, offset, began)
            limits[i] = {method, header, int(here), log[1], gone, left, version and {burst, '0', period, version}, period}
        elseif method == 'concurrency' then
            now_text, buckets_only = now_text or int(now), false
            local key = KEYS[3 * i - 2]
            local held = call('ZCOUNT', key, '(' .. now_text, '+inf')
            got[3 * i - 2] = held
            local left, expiry = count - held - 1, now + period
            -- A lease that ends later than the new one says when the key expires.
            if left < 0 or cost ~= '1' or call('ZCARD', KEYS[3 * NUMBER + i]) > 0 or call('ZSCORE', key, lease_id or id)
                or call('ZSCORE', key, '\0+') -- see lease_sizes.lua
                or call('ZCOUNT', key, int(expiry + 1), '+inf') > 0 then
                joint = nil
                break
            end
            limits[i] = {method, int(expiry), left, period}
        else
            joint = nil
        end
        if not joint then break end
    end
    if not buckets_only and joint and joint > now then joint = nil end -- a log and places are taken now
    -- Taken ahead, permits may lapse in one bucket while another is waited for: not where there are slots to wait in.
    for i = 1, joint and joint > now and NUMBER > 1 and id ~= '' and NUMBER or 0 do
        if joint - limits[i][2] >= limits[i][5] then
            joint = nil
            break
        end
    end
    local taken = joint and joint <= now + HORIZON_US
    -- Refused, and no slot is kept.
    local refused = joint and not taken and NUMBER == 1 and joint > now and (id == '' or joint - now > CLAIM_US)
    if taken or refused then
        local answer = taken and format('1 %d 0 %d', joint - now, joint) or format('0 %d 1 %d', joint - now, now)
        for i = 1, NUMBER do
            local limit = limits[i]
            if limit[1] == 'token_bucket' then
                local new, burst, interval, rest = limit[2], limit[4], limit[5], limit[6]
                if taken then
                    new = max(new, joint) + ARGV[FIRST_LIMIT + 6 * i - 2] * interval
                    local newest = max(limit[3], joint)
                    local state = rest and format('t%d %d %d 0 0%s', now, newest, new, rest)
                        or format('t%d %d %d 0 0 %d %d', now, newest, new, interval, now)
                    call('SET', KEYS[3 * i - 2], state, 'PX', format('%d', ceil((new - now + 1 + STEP_US) / 1000)))
                end
                answer = answer .. format(' %d %d', max(0, floor((now - new) / interval + burst)), new - now)
            elseif limit[1] == 'sliding_log' then
                local key, gone, period = KEYS[3 * i - 2], limit[5], limit[8]
                if gone > 0 then call('LTRIM', key, int(2 * gone), '-1') end
                if limit[4] then call('LSET', key, '0', limit[2]) else call('RPUSH', key, limit[2]) end
                call('RPUSH', key, limit[3], ARGV[FIRST_LIMIT + 6 * i - 2])
                call('PEXPIRE', key, int(ceil((period + STEP_US) / 1000)))
                answer = answer .. format(' %d %s', limit[6], period)
            else
                local key = KEYS[3 * i - 2]
                call('ZREMRANGEBYSCORE', key, '(0', now_text)
                call('ZADD', key, limit[2], lease_id or id, '-' .. now_text, '\0')
                call('PEXPIRE', key, int(ceil((limit[4] + STEP_US) / 1000)))
                answer = answer .. format(' %d 0', limit[3])
            end
        end
        for i = 1, stored and NUMBER or 0 do
            local at, evenly = FIRST_LIMIT + 6 * (i - 1), limits[i][1] == 'token_bucket'
            local code = {ARGV[at + 3], evenly and ARGV[at + 1] or '0', ARGV[at + 2], '0'}
            answer = answer .. format(' %s %s %s %s', unpack(limits[i][7] or code))
        end
        return answer
    end
end
