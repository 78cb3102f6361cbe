-- Every bucket as it is and what is stored for it, read in one step.
--
-- Uses NUMBER, of limits.
-- Gives got: for limit i its state at 3i-2, the config of its name at 3i-1, the config of its key at 3i; false where there is none.
-- A state that is no string is false as well, unless fast_path.lua has read of it: the head of a log, or how many places are held.
local got = call('MGET', unpack(KEYS, 1, 3 * NUMBER))
