-- Pass one: every limit's earliest time, and nothing written.
--
-- Uses NUMBER; limits, see read_limits.lua; id, of the request.
-- Gives joint, us: the earliest time that suits all limits; binding: the limit that decides it, counted from 1, or 0 if none does;
-- behind: in some limit other requests wait ahead of this one.
-- May end the script with the error "IMPOSSIBLE <limit> <size>".
local joint, binding, behind = now, 0, false
for i = 1, #limits do
    local limit = limits[i]
    if limit.stored then -- the caller knows the code's numbers only
        local most = limit.burst + (limit.algorithm.lends and max(0, limit.extra) or 0)
        if limit.cost > most then return redis.error_reply(format('IMPOSSIBLE %d %d', i, most)) end
    end
    if NUMBER > 1 then limit.among = true end -- it asks for other limits, too
    limit.algorithm.check(limit, now, id)
    if limit.paused and limit.paused > limit.grant then limit.grant = limit.paused end
    if limit.grant > joint then joint, binding = limit.grant, i end
    if limit.behind then
        behind = true
        if binding == 0 then binding = i end
    end
end
