-- Reads the request from KEYS and ARGV and makes pass one: every limit's earliest time, nothing written.
--
-- For limit i: KEYS[2i-1] its state, KEYS[2i] its slots; from ARGV[FIRST_LIMIT + 5(i-1)] on
--   algorithm   text      a name in `algorithms`
--   count       permits   per period, whole, >= 1
--   period      us        whole, >= 1
--   burst       permits   whole, >= 1
--   cost        permits   whole, 1 <= cost <= burst (checked by the caller: more could never be granted)
--
-- Leaves `limits`, the joint earliest time `joint`, `binding` (the limit that decides it, 0 if none does)
-- and `behind` (in some limit others wait ahead of this request).
local limits, joint, binding, behind = {}, now, 0, false
for i = 1, #KEYS / 2 do
    local at = FIRST_LIMIT + 5 * (i - 1)
    local limit = {
        state_key = KEYS[2 * i - 1],
        slots_key = KEYS[2 * i],
        algorithm = algorithms[ARGV[at]],
        count = tonumber(ARGV[at + 1]),
        period = tonumber(ARGV[at + 2]),
        burst = tonumber(ARGV[at + 3]),
        cost = tonumber(ARGV[at + 4]),
        tat = now,
        rem = 0,
        cursor = 0,
        grant = 0,
        whole = 0,
        part = 0,
        tolerance = 0,
        tolerance_rem = 0,
    }
    limit.algorithm.check(limit, now, id)
    if limit.grant > joint then joint, binding = limit.grant, i end
    if limit.behind then
        behind = true
        if binding == 0 then binding = i end
    end
    limits[i] = limit
end
