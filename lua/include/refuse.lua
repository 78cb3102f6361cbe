-- The end of a refusal: a slot is proposed, and kept if that was asked for; the states note what has to be noted; the caller hears.
--
-- Uses NUMBER; limits; joint and binding, see check.lua; line_up, see joint_slot.lua; reply; and of the script
--   in_line   text: the id for which a slot is kept; '' keeps none
--   latest    us: a slot that lies later than that is not kept
-- Gives the reply: it ends the script.
local slot, full = joint, false -- `full`: there is no room to wait
if binding > 0 and NUMBER > 1 then
    slot, full = line_up(in_line, latest)
elseif binding > 0 then
    slot, full = limits[1].algorithm.reserve(limits[1], now, in_line, joint, latest)
end
for i = 1, #limits do
    limits[i].algorithm.note_change(limits[i], now)
end
return reply(full and -1 or 0, now, max(1, slot - now), binding)
