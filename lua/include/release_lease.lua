-- A holder gives its places back: if its lease has expired, or was given back, they are free already.
--
-- Uses places_of and add_places, see lease_sizes.lua. Gives give_place_back(key, id, at): of the leases at `key`, that of holder `id`, which got
-- it at `at` us: how long it was held makes the next estimate of a wait. Returns how many places it held; nil: none.
local NEWEST = 0.2 -- the share of the newest hold in the running mean
local LONGEST_US = 86400000000 -- and the longest that is believed, a day
local function give_place_back(key, id, at)
    if not call('ZSCORE', key, id) then return nil end
    local held = min(max(0, now - at), LONGEST_US)
    local mean = tonumber(call('ZSCORE', key, ''))
    if mean then held = floor(-mean * (1 - NEWEST) + held * NEWEST) end
    call('ZADD', key, int(-held), '') -- first, so that the key and its time to live stay
    call('ZREM', key, id)
    add_places(key, 1 - places_of(id))
    return places_of(id)
end
