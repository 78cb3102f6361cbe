-- The share of its rate that an adaptive limit has now, after the upstream refused calls: the window of CUBIC (RFC 9438), as a share.
--
-- At a reduction the share falls to 0.7 of what it was. It is back there after `recover` us: fast at first, and slowly near the
-- rate at which the upstream refused. From there on it rises slowly at first, and has the whole rate after `recover` us more.
-- The share changes in steps, SHARE_STEPS of them in `recover` us: a bucket is written anew once in each step, not at each call.
-- Differs from CUBIC: the upper half ends at the whole rate, not at a slope that the share before the reduction gives.
--
-- Gives adapted_share(now, reduced, before, recover, least): the share, above 0 and at most 1; and the us at which its step began.
local SHARE_STEPS = 60
local function adapted_share(now, reduced, before, recover, least)
    local step = max(0, floor((now - reduced) * SHARE_STEPS / recover))
    local passed, share = step / SHARE_STEPS - 1, nil -- -1 at the reduction, 0 where the share is back, 1 at the whole rate
    before, least = before / 1000000, least / 1000000
    if passed < 0 then
        share = before + 0.3 * before * passed ^ 3
    else
        share = before + (1 - before) * passed ^ 3
    end
    return min(1, max(least, share)), reduced + floor(step * recover / SHARE_STEPS)
end
