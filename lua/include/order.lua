-- The order in which tasks of a lot have their turns: the more important ones first, by the message's own priority; equals in
-- the order in which they were throttled.
--
-- Both are in one number, the place: us since which a task is throttled, and ORDER_US for each step that it stands behind tasks
-- without a priority (below zero: before them). So a task that has waited for ORDER_US, which is 51 days, has caught up a step.
-- A message of a task that stands elsewhere than those without a priority ends in "order": <steps>} (before which its share
-- stands, see shares.lua); steps are -255 (RabbitMQ, the
-- most important) to 9 (Redis, the least). A place is never below zero, and a whole number.
--
-- Gives ORDER_US, LAST_ORDER; place_in(message), by what is kept in `messages`.
local ORDER_US, LAST_ORDER = 4398046511104, 9 -- 2^42

local function place_in(message)
    return match(message, '^%d+ %d+ (%d+)') + ORDER_US * (match(string.sub(message, -20), '"order": (%-?%d+)}$') or 0)
end
