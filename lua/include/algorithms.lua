-- The algorithms that the request names, and no others: Redis makes every function of a script anew at every call, so a script is
-- put together for these algorithms alone (celery_ratelimit/store/script.py). For the same reason `charge`, `give_back` and
-- `give_up` are made only in the scripts that call them: those set CORRECTS to true.
--
-- Gives algorithms, a table by name: lua/README.md says what each of them has to offer; lost(written, now) and
-- changed_at(limit, now, written); and GRACE_US, FAR_US and SOON_US, which the algorithms use.
local GRACE_US = 1000000 -- a slot overdue for so long is open to any request: its owner was killed or is very late
local FAR_US = 2^51 -- no bucket is further behind than that, 71 years: what is beyond is forgotten, and all numbers stay exact
local SOON_US = 100000 -- a slot so near may be taken ahead, even if permits of another limit lapse by that
local algorithms = {}

-- The us by which the clock has stepped back since the last write: no time has passed since then. 0 for a small step, see STEP_US.
local function lost(written, now)
    local back = written - now
    return back > STEP_US and back or 0
end

-- The bucket was written under one rule, and another is in force. Since when, in us? Since somebody stored a rate or took it away;
-- if the code has changed, since now.
local function changed_at(limit, now, written)
    return limit.since >= written and limit.since <= now and limit.since or now
end

--!algorithms
