-- park: put the message of a throttled task into the parking lot of the limit that said no. Idempotent by id.
--
-- KEYS   see include/lot.lua
-- ARGV   1  behind    1: only behind others; 0: also if nobody is there
--        2  most      >= 0: only if those who are there cost fewer permits; -1: however many
--        3  since     us: its place in the order, for one that was throttled before; 0: behind all others
--        4  expires   us; 0: never
--        5  key       text: of the bucket
--        6  id        text
--        7  cost      permits
--        8  copy      which copy of the message leaves here, at least
--        9  doubts    how often a message of it was sent anew, for it was not known whether it was parked
--        10 message   text
--        11+          ids that were parked before, and whose older copies are acknowledged by now
-- Reply  permits that those ahead cost; -1: nobody is there; -3: this comes late, and a message that was sent anew
--        meanwhile may run; -4 and less: -4 less what they cost, as much as they may
-- Writes the lot; no time to live: it is work
local id, since = ARGV[6], tonumber(ARGV[3])
--!include prelude.lua
--!include now.lua
--!include lot.lua

use_lot(0, ARGV[5])
acknowledged(11, #ARGV)
local parked = call('ZCARD', PARKED)
local ahead = parked + call('ZCARD', ASIDE)
if ahead == 0 then call('HDEL', COSTS, ARGV[5]) else ahead = ahead + (call('HGET', COSTS, ARGV[5]) or 0) end
if call('HEXISTS', MESSAGES, id) == 1 then return ahead end
local copy, twice = tonumber(ARGV[8]), call('EXISTS', TWICE) == 1
if twice and is_overtaken(id, copy - 1, tonumber(ARGV[9])) then return -3 end
if ARGV[1] == '1' and ahead == 0 then return -1 end
if ARGV[2] ~= '-1' and ahead >= tonumber(ARGV[2]) then return -4 - ahead end

if since == 0 then
    local last = parked > 0 and tonumber(call('ZRANGE', PARKED, -1, -1, 'WITHSCORES')[2]) or 0
    since = max(now, last + 1)
end
local chosen, newest, several
if twice then chosen, newest, several = copies(id) end
if chosen then -- this is the one that may run, under a number that no other has
    copy = max(copy, newest + 1)
    note_copies(id, copy, copy, several)
end
local message = format('%s %d %d ', ARGV[7], copy, since) .. ARGV[10]
local place = place_of(id, message)
call('HSET', MESSAGES, id, message)
if place then call('ZADD', WHERE, 0, place) end
call('ZADD', PARKED, int(since), id)
count_cost(ARGV[7], 1)
call('SADD', UNACKED, id)
if ARGV[4] ~= '0' then
    call('ZADD', EXPIRING, ARGV[4], id)
    call('ZADD', LOTS, 'XX', 'LT', ARGV[4], ARGV[5])
end
-- Somebody has to look at once, if it is the first or has come before the first.
if parked == 0 or ARGV[3] ~= '0' and call('ZRANK', PARKED, id) == 0 then
    call('ZADD', LOTS, int(now), ARGV[5])
end
return ahead
