-- The most frequent requests, decided at half of the cost. All limits are token buckets of whole intervals, no request waits, nothing
-- is paused. Then a request is allowed here if its permits lie within the horizon, and refused here if it asks one limit and keeps
-- no slot. The answer and what is written are those of token_bucket.lua. Every other request goes on below this file.
--
-- Uses NUMBER; FIRST_LIMIT; id, HORIZON_US and CLAIM_US as in acquire.lua, the last two as texts; got; CONFIG; STEP_US.
-- Gives the reply of what it decides (see reply.lua): it ends the script.
--!include config_text.lua
--!include read_keys.lua
do
    local joint, buckets, stored = now, {}, false
    for i = 1, NUMBER do
        local at = FIRST_LIMIT + 6 * (i - 1)
        local method, count, period, burst, extra = ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 5]
        local raw, config, own = got[3 * i - 2], got[3 * i - 1], got[3 * i]
        local version, expiry, paused
        if config and method ~= 'concurrency' and (not own or own == config) then -- places are no rate
            local algorithm, n, each, size, more
            version, expiry, paused, algorithm, n, each, size, more = match(config, CONFIG)
            if algorithm ~= '-' and (expiry == '0' or expiry - now > 0) then
                method, count, period, burst, extra, stored = algorithm, n, each, size, more, true
            else
                version = nil
            end
        elseif own then
            method = ''
        end
        local cost = ARGV[at + 4]
        if method ~= 'token_bucket' or extra ~= '0' or paused and (paused - now > 0 or cost - burst > 0) then
            joint = nil
            break
        end
        local interval, tat, last, rest = period / count, now, 0, nil
        if interval % 1 ~= 0 then
            joint = nil
            break
        elseif raw then
            local full, ahead, newest, kept, of = match(raw, '^(%d+) 0 (%d+) 0 (%d+)( (%d+) .+)')
            full = full and full + 0 -- once: each reckoning with a text reads it anew
            local written = full and full - ahead
            if not full or written > now or of - interval ~= 0 then
                joint = nil
                break
            end
            last = written + newest
            if full >= now then tat, rest = full, kept end
        elseif call('EXISTS', KEYS[3 * i - 2]) == 1 then
            joint = nil
            break
        end
        buckets[i] = {tat, last, burst, interval, rest, version and {burst, count, period, version}}
        joint = max(joint, tat + (cost - burst) * interval)
    end
    -- Taken ahead, permits may lapse in one bucket while another is waited for: not where there are slots to wait in.
    for i = 1, joint and joint > now and NUMBER > 1 and id ~= '' and NUMBER or 0 do
        if joint - buckets[i][1] >= buckets[i][4] then
            joint = nil
            break
        end
    end
    local taken = joint and joint <= now + HORIZON_US
    -- Refused, and no slot is kept.
    local refused = joint and not taken and NUMBER == 1 and joint > now and (id == '' or joint - now > CLAIM_US + 0)
    if taken or refused then
        local answer = taken and format('1 %d 0 %d', joint - now, joint) or format('0 %d 1 %d', joint - now, now)
        for i = 1, NUMBER do
            local bucket = buckets[i]
            local new, burst, interval, rest = bucket[1], bucket[3], bucket[4], bucket[5]
            if taken then
                new = max(new, joint) + ARGV[FIRST_LIMIT + 6 * i - 2] * interval
                local ahead, newest = new - now, max(bucket[2], joint) - now
                local state = rest and format('%d 0 %d 0 %d%s', new, ahead, newest, rest)
                    or format('%d 0 %d 0 %d %d %d %d', new, ahead, newest, interval, now, interval)
                call('SET', KEYS[3 * i - 2], state, 'PX', format('%d', ceil((ahead + 1 + STEP_US) / 1000)))
            end
            answer = answer .. format(' %d %d', max(0, floor((now - new) / interval + burst)), new - now)
        end
        for i = 1, stored and NUMBER or 0 do
            local at = FIRST_LIMIT + 6 * (i - 1)
            answer = answer .. format(' %s %s %s %s', unpack(buckets[i][6] or {ARGV[at + 3], ARGV[at + 1], ARGV[at + 2], '0'}))
        end
        return answer
    end
end
