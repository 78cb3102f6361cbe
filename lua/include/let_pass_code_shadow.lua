-- A limit that is in shadow in the code is let pass as one that is in shadow in the store: what workers that have it in force still
-- (an older code, or a change that is not read yet) have taken and promised stays as it is.
--
-- Uses NUMBER; FIRST_LIMIT; got, see fetch_state_and_config.lua. A cost of 0 says that a limit is in shadow.
for i = 1, NUMBER do
    if ARGV[FIRST_LIMIT + 6 * i - 2] == '0' then got[3 * i - 1], got[3 * i] = '00 0 0 - 0 0 0 0 0 0', false end
end
