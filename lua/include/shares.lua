-- Those who share a limit that is fair have their turns by weight: start-time fair queueing (Goyal, Vin, Cheng 1996).
--
-- Whose a task is, its share, is a text of letters, digits and @/.-_~+=,%# (store/keys.py escapes it), and stands in its message:
-- it ends in "share": "<share>"}, or in "share": "<share>", "order": <steps>}. Any other message ends in }}.
-- `turns` has each share that has tasks parked, and its tag: the virtual time at which the next of its tasks starts. Who has the
-- least tag is next. Virtual time is then at that tag, and the share's tag is further by what the task costs, divided by its
-- weight. A share without tasks stays until it would be next, so that it cannot save up by leaving and coming anew; who comes anew
-- begins at the present. Below all of these are, less than zero:
--   NUL        the virtual time that is reached, >= 1
--   NUL since  us: up to which change of the weights this lot has come
--   NUL from   a place of `parked`, plus one: what is before that is in the index
--   NUL held   only if some are held back
--   NUL code   only if some have weights in the code: a number for these, plus one
--   NUL sum    1, what the shares that are there weigh together, about, and STORED besides if people have stored weights
-- and from HELD on those whose weight is 0, with the number of the weights by which they were held back, see turns.lua.
-- `parked` has all tasks, and is what counts: versions before this one know no index, nor do scripts that are called for limits
-- which are not fair. An entry of a task that is not parked at its place any more is dropped when it is met; a task without an
-- entry gets one, with what it has for a share, or else ''.
-- The index is kept for KEPT_MS after the last look, which comes at least once a month: a version before this one, or a script for a
-- limit that is not fair, ends a lot without it.
-- `weights`, field NUL: "<us> <share> <us> <share> ... ", the last changes, each later than the one before.
--
-- Uses LOT_KEYS, shares of lot.lua.
-- Gives shares, which is nil in scripts without this text: entry(share, place, id), of `shares`; known, what this script has read: by the
-- key of `weights` the changes, by that of `turns` the sum; LOT_KEYS; KEPT_MS; HELD, CLOCK, SINCE, FROM_PLACE, SOME_HELD, SUM, STORED, IN_CODE, and
-- MARKS, how many members there are at the most that are no share.
local HELD, STORED, MARKS = 4503599627370496, 1099511627776, 6 -- 2^52, 2^40
local KEPT_MS = '5184000000' -- 60 days
local CLOCK, SINCE, FROM_PLACE, SOME_HELD, SUM, IN_CODE = '\0', '\0since', '\0from', '\0held', '\0sum', '\0code'
LOT_KEYS = 16
shares = {entry = false, ahead = false, join = false, add = false, changes = false, weight = false, of = false} -- has room for all
local known = {}

function shares.entry(share, place, id)
    return format('%s\0%016d\0', share, place) .. id
end
