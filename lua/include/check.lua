-- Pass one: every limit's earliest time, and nothing written.
--
-- Leaves the joint earliest time `joint`, `binding` (the limit that decides it, 0 if none does) and `behind` (in some
-- limit others wait ahead of this request).
local joint, binding, behind = now, 0, false
for i = 1, #limits do
    local limit = limits[i]
    limit.algorithm.check(limit, now, id)
    if limit.grant > joint then joint, binding = limit.grant, i end
    if limit.behind then
        behind = true
        if binding == 0 then binding = i end
    end
end
