-- What `payloads` keeps of a task: a record of ten fields, each followed by a space, and then its message as JSON.
--
--   <cost> <copy> <since us> <order> <leaves> <share> <unique> <survivor> <queue> <task>
--   since     when the task was first throttled
--   order     steps by which the task stands behind tasks without a priority: -255 (RabbitMQ, the most important) to 9 (Redis, the
--             least important)
--   leaves    of a limit with a reserve: what limits/any_limit.py passes as its `extra`, without the sign; empty: as the limit says
--   share     its share of a fair limit, see shares.lua
--   unique    identifies duplicates, of which only one is to wait: n (the newest stays) or o (the oldest stays), and hex digits
--   survivor  the id of the task that waits in its place: the worker that receives this one ends it
--   queue     that the task was sent to
--   task      its id
-- Texts are percent-encoded (backlog/messages.py); a field that a task does not have is empty.
--
-- In a parking lot more important tasks have their turns first; tasks of equal priority, in the order in which they were throttled. One
-- number, the place, contains both: `since`, plus ORDER_US for each step of `order`. So a task that has waited for ORDER_US, which is 51
-- days, has caught up one step. A place is a whole number and never below zero.
--
-- Gives a pattern for each field that scripts read: COST, COPY, THROTTLED_AT, LEAVES, SHARE, UNIQUE, QUEUE, TASK, and NUMBERS, which is
-- not anchored; ORDER_US, LAST_ORDER; place_in(message): the place of a task by its value in `payloads`.
local COST, COPY, THROTTLED_AT, LEAVES = '^(%d+) ', '^%d+ (%d+) ', '^%d+ %d+ (%d+) ', '^%d+ %d+ %d+ %-?%d+ (%d*) '
local NUMBERS = '%d+ %d+ %d+ %-?%d+ %d* ' -- what is before the texts
local SHARE, UNIQUE = '^' .. NUMBERS .. '([^ ]*) ', '^' .. NUMBERS .. '[^ ]* ([^ ]*) '
local QUEUE, TASK = '^' .. NUMBERS .. '[^ ]* [^ ]* [^ ]* ([^ ]*) ', '^' .. NUMBERS .. '[^ ]* [^ ]* [^ ]* [^ ]* ([^ ]*) '
local ORDER_US, LAST_ORDER = 4398046511104, 9 -- 2^42

local function place_in(message)
    local since, order = match(message, '^%d+ %d+ (%d+) (%-?%d+) ')
    return since and since + ORDER_US * order or 0
end
