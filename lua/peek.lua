-- peek: what would `acquire` answer at this moment? Takes nothing, reserves nothing, writes nothing.
--
-- KEYS   two per limit, see include/request.lua
-- ARGV   1  id        text; asks on behalf of that waiting request; '' for a newcomer
--        2+ five per limit, see include/request.lua
-- Reply  see include/reply.lua
local id = ARGV[1]
local FIRST_LIMIT = 2
local algorithms = {}
local call, format, floor, max = redis.call, string.format, math.floor, math.max

--!include now.lua
--!include token_bucket.lua
--!include request.lua
--!include reply.lua

if binding == 0 then return reply(1, 0, 0) end
local limit = limits[binding]
return reply(0, limit.algorithm.reserve(limit, now, '', joint, now) - now, binding)
