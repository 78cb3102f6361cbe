-- How many places a lease holds: one under the id of its holder, several under `<id> NUL <number>`, so that the member itself says it.
--
-- leases key: member NUL "+" -> minus how many places all leases in the set hold besides one each, those that have expired included; none
-- if that is 0. So the places that are held are counted with ZCOUNT, however many each lease holds.
--
-- Uses now. Gives MORE, that member; holder(id, places), the member of a lease; places_of(member); more_places(key), how many places
-- leases hold besides one each, without expired ones, and whether MORE is there; add_places(key, more), which changes the number for a lease that came or went.
local MORE = '\0+'

local function holder(id, places)
    return places > 1 and id .. '\0' .. int(places) or id
end

local function places_of(member)
    return (match(member, '%z(%d+)$') or 1) + 0
end

local function more_places(key)
    local stored = call('ZSCORE', key, MORE)
    local more = -(stored or 0)
    for _, member in ipairs(more > 0 and call('ZRANGEBYSCORE', key, '(0', int(now)) or {}) do
        more = more - places_of(member) + 1
    end
    return more, stored
end

local function add_places(key, more)
    if more == 0 then return end
    more = more - (call('ZSCORE', key, MORE) or 0)
    if more > 0 then call('ZADD', key, int(-more), MORE) else call('ZREM', key, MORE) end
end
