-- The functions of algorithms that only requests in a line need. They are made where one waits, or is to wait: see check_all_limits.lua.
--
-- Uses algorithms, used, counts and counted, see algorithms.lua; NUMBER; CORRECTS.
-- Gives, in the algorithms, join, reserve, and more, see lua/README.md; and look(limit, now, id): pass one for one limit: the bucket as
-- it is, and where the request stands in its line.
local function look(limit, now, id)
    limit.behind, limit.owner, limit.first, limit.overdue, limit.gapped, limit.room = false, nil, nil, nil, false, false
    limit.algorithm.check(limit, now, id)
    if limit.line then limit.algorithm.join(limit, now, id) end
end

if used.token_bucket or used.leaky_bucket then
--!include token_line.lua
end
if counts then
--!include base_line.lua
end
