-- Every bucket as it is, and what is in force for it, read in one step. See request.lua.
local got = call('MGET', unpack(KEYS, 1, 3 * NUMBER))
