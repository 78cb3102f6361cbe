-- What people have stored for a limit, as a text: the one place that knows where its parts stand.
--
-- config key: string "<version> <until us> <paused us> <algorithm> <count> <period> <size> <extra> <since us> <resumed us>", then
-- ADAPTED, if the upstream has refused calls of an adaptive limit, and a line feed and a note that only clients read. `algorithm` is - where no rate is stored; `since` is when the rate was stored or
-- taken away; `resumed` is when a pause was ended by hand. A limit has one such key, and each key of the limit may have its own,
-- which goes first. What people store stays: it expires only if it was given an end, and then an hour after that, so that tasks
-- that wait still find it when they come.
--
-- The version has a zero before it while the limit is in shadow (set_shadow.lua): an older version of the scripts, which has no
-- shadow, reads the same number.
--
-- ADAPTED is "~<us of the last reduction> <share before it> <us until that share is back> <least share>", in millionths of the rate in
-- force: see adaptive_rate.lua.
--
-- Gives CONFIG, a pattern: a match has the first ten parts in this order, as texts; and ADAPTED, a pattern of four.
local CONFIG = '^(%d+) (%d+) (%d+) (%S+) (%d+) (%d+) (%d+) (%-?%d+) (%d+) (%d+)'
local ADAPTED = '^[^\n]+~(%d+) (%d+) (%d+) (%d+)'
