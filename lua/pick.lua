-- pick: take certain tasks out of the lot before their turn, to be published at once or never.
--
-- KEYS   see include/lot.lua
-- ARGV   1  purge     1: they are thrown away; 0: whoever calls publishes them
--        2  again, 3 memory: us, see unpark.lua
--        4  key       text: of the bucket
--        5+           ids
-- Reply  for each that was parked: its id, 0, its message
-- Writes the lot
local AGAIN_US, MEMORY_US = tonumber(ARGV[2]), tonumber(ARGV[3])
--!include prelude.lua
--!include now.lua
--!include lot.lua
--!include leave.lua

use_lot(0)

for i = 5, #ARGV do
    local id = ARGV[i]
    if call('ZSCORE', PARKED, id) then
        leave(id, 0)
        if ARGV[1] == '1' then
            call('ZREM', LEAVING, id)
            call('HDEL', MESSAGES, id)
        end
    end
end
if nobody_is_left() then
    call('ZREM', LOTS, ARGV[4])
elseif #out > 0 then
    call('ZADD', LOTS, 'XX', 'LT', int(now), ARGV[4]) -- the next one may have its turn sooner
end
return out
