-- keys_with_settings: keys of limits that have a pause or a rate of their own. Writes nothing.
--
-- KEYS   of each limit the set of these, see include/change_config.lua
-- ARGV   1  most    keys of one limit that are listed
-- Reply  for each limit: "p<key>" or "r<key>", us at which that ends, ...
local MOST = ARGV[1]
--!include prelude.lua
--!include now.lua
local answer = {}
for i = 1, #KEYS do answer[i] = call('ZRANGEBYSCORE', KEYS[i], int(now), '+inf', 'WITHSCORES', 'LIMIT', 0, MOST) end
return answer
