-- What stands at the top of every script: short names of Lua's and Redis's functions, STEP_US, int(number), lease_id, read_only.
local call, format, match = redis.call, string.format, string.match
local floor, ceil, max, min = math.floor, math.ceil, math.max, math.min

-- A clock that steps back by so much or less is waited for: times that are kept stay what they are, so that the laws hold by the
-- clock itself. Valkey 9.1's does when its machine is busy (docs/adr/0007). A larger step means another clock, as after a
-- failover: no time has passed since the last write. Keys are kept for so much longer, too.
local STEP_US = 100000

-- A whole number as text. Left to itself, Redis writes some numbers with an exponent (7.2.0 to 7.2.4).
local function int(number)
    return format('%d', number)
end

-- Names the lease of the request that asks: one run of a task. nil: the request's own id does. The script that knows it sets it.
local lease_id

-- Whether the script writes nothing, see read_only.lua.
local read_only = false
