-- The end of a refusal: a slot is proposed, and kept if that was asked for; the states note what has to be noted; the caller hears.
--
-- Uses NUMBER; limits; joint, binding, lined, line_up, in_line and latest, see check_all_limits.lua; reply.
-- Gives the reply: it ends the script.
local slot, full = joint, false -- `full`: there is no room to wait
if lined and binding > 0 then
    if NUMBER > 1 then
        slot, full = line_up()
    else
        slot, full = limits[1].algorithm.reserve(limits[1], now, in_line, joint, latest)
    end
end
for i = 1, #limits do
    if limits[i].changed then limits[i].algorithm.write(limits[i], now) end
end
return reply(full and -1 or 0, now, max(1, slot - now), binding)
