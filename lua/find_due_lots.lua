-- find_due_lots: find the parking lots that a worker has to process now.
--
-- A parking lot is due when its time comes, or when its bucket was touched (include/mark_for_recheck.lua): each touch counts once.
-- KEYS   of each limit: due, see include/lot.lua, and touched
-- ARGV   1  most      number of parking lots in the reply for each limit
--        2  fleet     text: of the parking lots
-- Reply  for each limit: keys of buckets; nil: no task is parked for it
-- Writes due, for touched buckets; touched: member NUL <fleet>, the last touch that this fleet has processed
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
