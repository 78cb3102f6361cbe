-- The algorithms that the request names, and none besides: a script is put together for them (celery_ratelimit/store/script.py),
-- since each function in it would be made anew at every call. For the same reason only scripts that have CORRECTS on make those
-- that only they call: `charge`, `give_back`, `leave`.
local GRACE_US = 1000000 -- a slot this long overdue is open to whoever is there: its owner was killed or is very late
local FAR_US = 2^51 -- no bucket is further behind than that, 71 years: what is beyond is forgotten, and all numbers stay exact
local SOON_US = 100000 -- a slot so near may be taken ahead, even if that lets permits of another limit lapse
local algorithms = {}

-- The us at which the rule in force began, where it is not the one that the bucket was written under: when somebody stored it or
-- took it away; else, if it is the code that has changed, now.
local function changed_at(limit, now, written)
    return limit.since >= written and limit.since <= now and limit.since or now
end

--!algorithms
