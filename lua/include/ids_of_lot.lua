-- The tasks of a parking lot in their order. Tasks that are set aside come after the others.
--
-- Gives ids_of_lot(parked, aside, from, to): the ids from index `from` to index `to`, counted from 0; -1 is the last one. The first
-- two arguments are keys, see lot.lua.
local function ids_of_lot(parked, aside, from, to)
    local number = call('ZCARD', parked)
    local ids = call('ZRANGE', parked, from, to)
    if to == '-1' or to - number >= 0 then
        local first, last = max(0, from - number), to == '-1' and -1 or to - number
        for _, entry in ipairs(call('ZRANGE', aside, int(first), int(last))) do
            ids[#ids + 1] = match(entry, '^[^%z]*%z%d+%z(.*)$')
        end
    end
    return ids
end
