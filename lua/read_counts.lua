-- read_counts: what processes have decided about limits, as add_counts.lua has added it up.
--
-- KEYS   for each limit: see add_counts.lua
-- ARGV   1  -1: with the seconds, the minutes and the users; 0: the totals alone; n: with the last n minutes
-- Reply  microseconds since 1970; then for each limit a list: its totals, seconds, minutes, and users with their permits
-- Writes nothing
local MINUTES = tonumber(ARGV[1])
--!include prelude.lua
--!include now.lua

local totals = {}
for i = 1, #KEYS, 4 do totals[#totals + 1] = KEYS[i] end
totals = call('MGET', unpack(totals))
local answer = {int(now)}
for i = 1, #KEYS, 4 do
    local said = {totals[#answer] or ''}
    if MINUTES > 0 then
        said[2], said[3], said[4] = {}, call('LRANGE', KEYS[i + 2], -MINUTES, -1), {}
    elseif MINUTES < 0 then
        said[2], said[3] = call('LRANGE', KEYS[i + 1], 0, -1), call('LRANGE', KEYS[i + 2], 0, -1)
        said[4] = call('ZRANGE', KEYS[i + 3], 0, -1, 'WITHSCORES')
    end
    answer[#answer + 1] = said
end
return answer
