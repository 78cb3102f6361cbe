-- Pass one: may the request have its permits, and when? Nothing is written.
--
-- Uses NUMBER; limits, see read_limits.lua; id, of the request; HORIZON_US, within which its permits may lie; and of the script
--   soonest   us: the permits are taken no sooner
--   in_line   text: the id for which a slot is kept; '' keeps none
--   latest    us: a slot that lies later than that is not kept
-- Gives joint, us: the earliest time that suits all limits; binding: the limit that decides it, counted from 1, or 0 if none does;
-- allowed: the permits may be taken at the joint time; lined: the functions of load_line_functions.lua are there; line_up, see joint_slot.lua.
-- May end the script with the error "IMPOSSIBLE <limit> <size>".
local joint, binding, behind, lined, fits, line_up = soonest, 0, false, false, nil, nil
for i = 1, NUMBER do
    local limit = limits[i]
    if limit.stored then -- the caller knows the code's numbers only
        local most = limit.burst + (limit.algorithm.lends and max(0, limit.extra) or 0)
        if limit.cost > most then return redis.error_reply(format('IMPOSSIBLE %d %d', i, most)) end
    end
    limit.among = NUMBER > 1 -- the request asks for other limits, too
    limit.algorithm.check(limit, now, id)
    lined, joint = lined or limit.line, max(joint, limit.grant, limit.paused or 0)
end
if lined or joint > now and (NUMBER > 1 or in_line ~= '' and joint <= latest) then
    lined = true
--!include load_line_functions.lua
    for i = 1, NUMBER do
        if limits[i].line then limits[i].algorithm.join(limits[i], now, id) end
    end
--!include joint_slot.lua
end
joint = now
for i = 1, NUMBER do
    local limit = limits[i]
    if limit.paused and limit.paused > limit.grant then limit.grant = limit.paused end
    if limit.grant > joint then joint, binding = limit.grant, i end
    if limit.behind then
        behind = true
        if binding == 0 then binding = i end
    end
end
joint = max(joint, soonest)
-- A request that returns goes before newcomers: a newcomer that finds others waiting ahead joins the line, even if a permit is there.
local allowed = not behind and joint <= now + HORIZON_US and (NUMBER == 1 or joint == now or fits())
