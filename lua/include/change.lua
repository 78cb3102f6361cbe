-- What a change of the rate keeps, where time stands for permits: what is in use stays in use, and comes back at the new rate
-- from the change on; what was granted ahead stays, and the new rate begins behind the last of it. See docs/adr/0012.
--
-- `at` us is the change; `us` is when all is back, `factor` how much slower it comes back now, `deep` us: what all that the bucket holds takes
-- under the new rate; `limit.newest` us: the newest permit. Returns when all is back, and from when on the new rate holds.
local function moved(limit, at, us, factor, deep)
    local from = max(at, min(limit.newest, us))
    local back = from + ceil((us - from) * factor)
    -- That permit may lie further ahead than the bucket asked: for the sake of another limit, or of a pause. What was in use
    -- before it is no longer known: it is all that can be.
    if from > at then back = max(back, at + ceil(min((us - at) * factor, deep))) end
    return min(back, at + FAR_US), from
end
