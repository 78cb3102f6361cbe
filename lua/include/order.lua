-- The order in which tasks of a parking lot have their turns: more important tasks first, by the message's priority; tasks of equal
-- priority in the order in which they were throttled.
--
-- One number, the place, contains both: us since which a task is throttled, plus ORDER_US for each step that it stands behind tasks
-- without a priority (below zero: before them). So a task that has waited for ORDER_US, which is 51 days, has caught up one step.
-- The message of a task with such steps ends in "order": <steps>} (its share stands before that, see shares.lua). Steps are -255
-- (RabbitMQ, the most important) to 9 (Redis, the least important). A place is a whole number and never below zero.
--
-- Gives ORDER_US, LAST_ORDER; place_in(message): the place of a task by its value in `messages`.
local ORDER_US, LAST_ORDER = 4398046511104, 9 -- 2^42

local function place_in(message)
    return match(message, '^%d+ %d+ (%d+)') + ORDER_US * (match(string.sub(message, -20), '"order": (%-?%d+)}$') or 0)
end
