-- What people have stored for a limit, as a text: the one place that knows where its parts stand.
--
-- config key: string "<version> <until us> <paused us> <algorithm> <count> <period> <size> <extra> <since us> <resumed us>", then
-- a line feed and a note that only clients read. `algorithm` is - where no rate is stored; `since` is when the rate was stored or
-- taken away; `resumed` is when a pause was ended by hand. A limit has one such key, and each key of the limit may have its own,
-- which goes first. What people store stays: it expires only if it was given an end, and then an hour after that, so that tasks
-- that wait still find it when they come.
--
-- Gives CONFIG, a pattern: a match has these ten parts in this order, as texts.
local CONFIG = '^(%d+) (%d+) (%d+) (%S+) (%d+) (%d+) (%d+) (%-?%d+) (%d+) (%d+)'
