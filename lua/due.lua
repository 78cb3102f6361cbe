-- due: which parking lots has a worker to look after?
--
-- A lot is due when its time comes, or when its bucket was touched (include/touch.lua): each touch counts once.
-- KEYS   of each limit its lots, see include/lot.lua, and what was touched
-- ARGV   1  most      of each limit no more lots than that
--        2  fleet     text: whose lots
-- Reply  for each limit: keys of buckets; nil: no task is parked there
-- Writes lots, for what was touched; touched: member NUL <fleet>, up to which touch this fleet has come
local MOST, fleet = ARGV[1], ARGV[2]
--!include prelude.lua
--!include now.lua

local MOST_TOUCHED = 500
local mark = '\0' .. fleet
local due = {}
for i = 1, #KEYS, 2 do
    local lots, touched = KEYS[i], KEYS[i + 1]
    if call('EXISTS', lots) == 0 then
        due[#due + 1] = false
    else
        local heeded = call('ZSCORE', touched, mark)
        local new = call('ZRANGEBYSCORE', touched, heeded and '(' .. int(tonumber(heeded)) or '-inf', '+inf',
            'WITHSCORES', 'LIMIT', 0, MOST_TOUCHED)
        for j = 1, #new, 2 do
            call('ZADD', lots, 'XX', 'LT', int(now), new[j])
        end
        if #new > 0 then call('ZADD', touched, int(tonumber(new[#new])), mark) end
        due[#due + 1] = call('ZRANGEBYSCORE', lots, '-inf', int(now), 'LIMIT', 0, MOST)
    end
end
return due
