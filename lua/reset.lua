-- reset: forget what was taken.
--
-- KEYS   of each limit: its state, its slots, what was touched, its history, virtual queues of its buckets, see simulate_shadow.lua
-- ARGV   1  note: author and reason, for the history; then the key of each limit's bucket: text
-- Reply  1
-- Writes states, slots and virtual queues: they are gone; history
local NOTE, FIRST_BUCKET = ARGV[1], 2
--!include prelude.lua
--!include now.lua
--!include mark_for_recheck.lua
--!include keep_change.lua

local changed = {} -- one name may stand for a rate and for places
for i = 1, #KEYS / 5 do
    local bucket, history = ARGV[FIRST_BUCKET + i - 1], KEYS[5 * i - 1]
    call('UNLINK', KEYS[5 * i - 4], KEYS[5 * i - 3])
    call('HDEL', KEYS[5 * i], bucket)
    touch(KEYS[5 * i - 2], bucket)
    if changed[history] ~= bucket then keep_change(history, 'reset', bucket, NOTE, '', '') end
    changed[history] = bucket
end
return 1
