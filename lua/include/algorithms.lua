-- The algorithms that the request names, and none besides: a script is put together for them (celery_ratelimit/_scripts.py),
-- since each function in it would be made anew at every call.
local GRACE_US = 1000000 -- a slot this long overdue is open to whoever is there: its owner was killed or is very late
local algorithms = {}

--!algorithms
