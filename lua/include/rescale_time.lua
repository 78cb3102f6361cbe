-- What a change of the rate keeps, where a bucket is kept as a time: permits that are in use stay in use, and come back at the new
-- rate from the change on. Permits that were granted ahead stay too, and the new rate begins behind the last of them. See
-- docs/adr/0012.
--
-- Uses FAR_US, see algorithms.lua.
-- Gives moved(limit, at, us, factor, deep):
--   at            us of the change
--   us            us at which all permits would have been back under the old rate
--   factor        by how much more slowly they come back now
--   deep          us that all permits of the bucket take under the new rate
--   limit.newest  us of the newest permit
-- returns when all permits are back, and from when on the new rate holds.
local function moved(limit, at, us, factor, deep)
    local from = max(at, min(limit.newest, us))
    local back = from + ceil((us - from) * factor)
    -- The newest permit may lie further ahead than the bucket asked: for the sake of another limit, or of a pause. What was in use
    -- before it is no longer known: at most everything.
    if from > at then back = max(back, at + ceil(min((us - at) * factor, deep))) end
    return min(back, at + FAR_US), from
end
