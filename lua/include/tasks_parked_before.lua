-- The tasks that were parked by some time, even if more important tasks have arrived since.
--
-- Uses now; ORDER_US, LAST_ORDER of task_record.lua.
-- Gives parked_by(parked, latest, from, most): of the sorted set `parked` the ids and places of tasks that were throttled by
-- `latest`, from the place `from` on, in their order. (All tasks more important than tasks without a priority are included.)
local function parked_by(parked, latest, from, most)
    local found = {}
    for order = 0, LAST_ORDER do
        if #found >= 2 * most then break end
        local first = order > 0 and now + (order - 1) * ORDER_US + 1 or 0 -- the tasks before it have arrived since
        local some = call('ZRANGEBYSCORE', parked, int(max(from, first)), int(latest + order * ORDER_US), 'WITHSCORES',
            'LIMIT', 0, int(most - #found / 2))
        for i = 1, #some do found[#found + 1] = some[i] end
    end
    return found
end
