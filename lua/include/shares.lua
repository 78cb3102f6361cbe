-- The shares of a fair limit have their turns by weight: start-time fair queueing (Goyal, Vin, Cheng 1996).
--
-- The share of a task is a text of letters, digits and @/.-_~+=,%# (store/keys.py escapes it); the task's record contains it.
-- `turns` has each share with parked tasks, and its tag: the virtual time at which the next of its tasks starts. The share with the
-- least tag is next. Then virtual time moves to that tag, and the share's tag grows by the task's cost divided by the share's
-- weight. A share without tasks stays until it would be next, so that it gains no advantage by leaving and joining anew; a share that
-- joins anew begins at the present virtual time. Below all shares are members with scores less than zero:
--   NUL        the present virtual time, >= 1
--   NUL since  us: the last change of the weights that this parking lot has processed
--   NUL from   a place of `parked`, plus one: tasks before it are in the index
--   NUL held   only if some shares are held back
--   NUL code   only if some shares have weights in the code: a number for these weights, plus one
--   NUL sum    1, plus about the total weight of the shares that are there, plus STORED if people have stored weights
-- and from HELD on the shares of weight 0, with the number of the weights by which they were held back, see next_share.lua.
-- `parked` has all tasks, and decides: older versions, and scripts for limits that are not fair, do not write the index.
-- An entry of a task that is no longer parked at its place is dropped when a script meets it; a task without an
-- entry gets one, with the share in its record.
-- The index is kept for KEPT_MS after the last poll, which happens at least once a month: an older version, or a script for a
-- limit that is not fair, deletes a parking lot without its index.
-- `weights`, field NUL: "<us> <share> <us> <share> ... ", the last changes, each later than the one before.
--
-- Uses shares of lot.lua.
-- Gives shares, which is nil in scripts without this text: entry(share, place, id), of `shares`; known, values that this script has
-- read: by the key of `weights` the changes, by the key of `turns` the sum; KEPT_MS; HELD, CLOCK, SINCE, FROM_PLACE, SOME_HELD,
-- SUM, STORED, IN_CODE, and MARKS, the most members that are no share.
local HELD, STORED, MARKS = 4503599627370496, 1099511627776, 6 -- 2^52, 2^40
local KEPT_MS = '5184000000' -- 60 days
local CLOCK, SINCE, FROM_PLACE, SOME_HELD, SUM, IN_CODE = '\0', '\0since', '\0from', '\0held', '\0sum', '\0code'
shares = {entry = false, ahead = false, join = false, add = false, changes = false, weight = false} -- has room for all
local known = {}

function shares.entry(share, place, id)
    return format('%s\0%016d\0', share, place) .. id
end
