-- A limit that is in shadow, of which a process does not know that yet: it lets every request through, and nothing is written.
--
-- Uses limit, now. Puts that in the place of the limit's algorithm. The limit's version is -1, so that the caller learns of it.
local function nothing() end
local function joint_of(_, _, _, at) return at end
limit.algorithm = {
    check = nothing, commit = nothing, claim = nothing, write = nothing, give_up = nothing, charge = nothing, give_back = nothing,
    reserve = joint_of, evenly = limit.algorithm.evenly,
    place = function(_, _, at) return at end,
    due = function() return now + 1 end,
    fits = function() return true end,
    state = function(each) return each.burst, 0 end,
}
limit.paused, limit.stored, limit.version, limit.cost = false, true, -1, min(limit.cost, limit.burst)
