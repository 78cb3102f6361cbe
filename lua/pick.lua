-- pick: take tasks out of the lot before their turn, to be published at once or never. As far as one script may go.
--
-- KEYS   see include/lot.lua
-- ARGV   1  purge     1: they are thrown away; 0: whoever calls publishes them
--        2  again, 3 memory: us, see unpark.lua
--        4  key       text: of the bucket
--        5  bytes     >= 1: no more are taken out when their messages are that long
--        6  most      0: those with the ids that follow; else so many of all who are parked, in their order
--        7  from      text: with 9, behind whom: us, or 'aside'; ''
--        8  until     us: those who were parked by then; 0: now
--        9  last      text
--        10+          ids
-- Reply  us of this clock; to how many ids it came; how many were taken out; then 7 and 9 for who goes on, '' if there are no more;
--        then, unless they are thrown away, for each its id, 0, its message
-- Writes the lot
local AGAIN_US, MEMORY_US = tonumber(ARGV[2]), tonumber(ARGV[3])
local PURGE, BYTES, MOST = ARGV[1] == '1', tonumber(ARGV[5]), tonumber(ARGV[6])
--!include prelude.lua
--!include now.lua
--!include lot.lua
--!include leave.lua

use_lot(0, ARGV[4])
local ids, places, taken, came, from, last = {}, {}, 0, 0, '', ''
if ARGV[7] == 'aside' then
    local found = call('ZRANGEBYLEX', ASIDE, ARGV[9] == '' and '-' or '(' .. ARGV[9], '+', 'LIMIT', 0, MOST)
    for i, entry in ipairs(found) do
        local since, id = match(entry, '^[^%z]*%z(%d+)%z(.*)$')
        ids[i], places[i] = tonumber(since) <= tonumber(ARGV[8]) and id or '', entry
    end
    if #found == MOST then from, last = 'aside', found[#found] end
elseif MOST > 0 then
    local before = tonumber(ARGV[7]) or 0
    local found = call('ZRANGEBYSCORE', PARKED, int(before), int(ARGV[8] == '0' and now or tonumber(ARGV[8])), 'WITHSCORES',
        'LIMIT', 0, MOST)
    for i = 1, #found, 2 do
        local place = tonumber(found[i + 1])
        if place > before or found[i] > ARGV[9] then
            ids[#ids + 1], places[#ids + 1] = found[i], place
        end
    end
    if #found == 2 * MOST then from, last = int(found[#found]), found[#found - 1] end
    if from ~= '' and #ids == 0 then from, last = int(before + 1), '' end
    if from == '' and call('EXISTS', ASIDE) == 1 then from = 'aside' end
else
    for i = 10, #ARGV do ids[#ids + 1] = ARGV[i] end
end

for i, id in ipairs(ids) do
    if bytes >= BYTES then
        if ARGV[7] == 'aside' then
            from, last = 'aside', places[i - 1]
        elseif MOST > 0 then
            from, last = int(places[i - 1]), ids[i - 1]
        end
        break
    end
    came = i
    if is_parked(id) then
        taken = taken + 1
        leave(id, 0)
        if PURGE then
            call('ZREM', LEAVING, id)
            call('HDEL', MESSAGES, id)
        end
    end
end
if nobody_is_left() then
    end_lot()
elseif taken > 0 then
    call('ZADD', LOTS, 'XX', 'LT', int(now), bucket) -- the next one may have its turn sooner
end
return {int(now), came, taken, from, last, unpack(PURGE and {} or out)}
