-- The algorithms that are in use. Redis makes every function of a script anew at every call, so only functions are made that may be
-- called: of the algorithms that the request names or that are stored for its limits; `charge`, `give_back` and `give_up` only in
-- scripts that set CORRECTS to true; what several limits need where NUMBER is above 1.
--
-- Uses used, a set of names; NUMBER; CORRECTS.
-- Gives algorithms, a table by name: lua/README.md says what each of them has to offer; counts: whether one of them counts permits, and
-- then counted and kept_ms, see algorithm_base.lua; lost(written, now) and changed_at(limit, now, written); and GRACE_US, FAR_US and SOON_US,
-- which the algorithms use. Ends the script with an error if there is no such algorithm here.
local GRACE_US = 1000000 -- a slot overdue for so long is open to any request: its owner was killed or is very late
local FAR_US = 2^51 -- no bucket is further behind than that, 71 years: what is beyond is forgotten, and all numbers stay exact
local SOON_US = 100000 -- a slot so near may be taken ahead, even if permits of another limit lapse by that
local algorithms = {}

-- The us by which the clock has stepped back since the last write: no time has passed since then. 0 for a small step, see STEP_US.
local function lost(written, now)
    local back = written - now
    return back > STEP_US and back or 0
end

-- The bucket was written under one rule, and another is in force. Since when, in us? Since a rate was stored or removed;
-- if the code has changed, since now.
local function changed_at(limit, now, written)
    return limit.since >= written and limit.since <= now and limit.since or now
end

--!include rescale_time.lua
if used.token_bucket or used.leaky_bucket then
--!include token_bucket.lua
end
if used.leaky_bucket then
--!include leaky_bucket.lua
end
local counted, kept_ms
local counts = used.fixed_window or used.sliding_window or used.sliding_log or used.stepped_bucket or used.warm_up or used.concurrency
if counts then
--!include algorithm_base.lua
end
if used.fixed_window then
--!include fixed_window.lua
end
if used.sliding_window then
--!include sliding_window.lua
end
if used.sliding_log then
--!include sliding_log.lua
end
if used.stepped_bucket then
--!include stepped_bucket.lua
end
if used.warm_up then
--!include warm_up.lua
end
if used.concurrency then
--!include concurrency.lua
end

for method in next, used do
    if not algorithms[method] then
        return redis.error_reply(format("ERR a limit is stored with the algorithm '%s', which this version of celery_ratelimit does "
            .. 'not have', method))
    end
end
