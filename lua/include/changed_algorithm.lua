-- A limit has another algorithm now, in the code or in the store, than the one that has written its state: its bucket begins as used
-- up when the newest permit of the other one is good. All permits that the other one has granted are good by then, so no interval
-- holds more from then on than the new algorithm allows. One burst, or one window, is lost at most.
--
-- A state begins with the letter of its algorithm, the us of the last write and the us of the newest permit. A sliding log is a
-- list, and its first element begins with that. The leases of a Concurrency have a key of their own.
--
-- Uses limit, now; state, of which the first letter is another algorithm's; lost, see algorithms.lua.
-- Gives limit.used_up: us at which all permits of the bucket count as taken.
local written, newest = match(state, '^%a(%d+) (%d+)')
limit.used_up = written and max(0, newest - lost(written + 0, now)) or now
limit.raw, limit.changed = false, true
