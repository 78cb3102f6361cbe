-- recent_usage: the permits that were taken of limits lately, out of what add_counts.lua has added up.
--
-- KEYS   for each limit its seconds, or its minutes
-- ARGV   for each limit: 1 or 60, what an entry is for in seconds; and within how many seconds
-- Reply  for each limit: permits. Not of this second, which is not told yet; of the first minute the part that is within the time
-- Writes nothing
local SETTINGS = ARGV
--!include prelude.lua
--!include now.lua

local answer = {}
for i, key in ipairs(KEYS) do
    local unit, within = tonumber(SETTINGS[2 * i - 1]), tonumber(SETTINGS[2 * i])
    local to = unit == 1 and floor(now / 1000000) or now / 1000000
    local from = to - within
    local entries = call('LRANGE', key, -floor(within / unit) - 2, -1)
    local last, permits, at = #entries, 0, 0
    for n = last, 1, -1 do
        local when, number = match(entries[n], '^(%d*)[^p]*p?(%d*)')
        at = n == last and when * unit or at - (when == '' and 1 or when) * unit
        if at + unit <= from then break end
        if number ~= '' and at < to then
            permits = permits + number * (at < from and (at + unit - from) / unit or 1)
        end
    end
    answer[i] = floor(permits + 0.5)
end
return answer
