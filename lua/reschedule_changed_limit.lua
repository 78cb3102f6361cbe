-- reschedule_changed_limit: a limit has changed: make its parking lots due earlier than planned.
--
-- A few parking lots are due at once. Many are due one after the other, so that a parking lot with tasks to return need not wait for
-- all of them. The caller repeats the call until fewer than `most` parking lots were moved. Several workers may call it: the result is
-- the same.
-- KEYS   1  due, 2  code, see include/lot.lua; 3  config of the name, see include/config_format.lua;
--        4  weights, see include/shares.lua
-- ARGV   1  known     us: the last change of the stored setting of the whole limit that was handled; -1: it has changed
--        2  most      parking lots that are moved
--        3  code      text: the limit as it is in the caller's code; '': do not compare it
-- Reply  us of this clock, number of parking lots that were moved
-- Writes due, code
local DUE_LOTS, CODE, CONFIG_KEY, WEIGHTS = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local known, MOST, code = tonumber(ARGV[1]), ARGV[2], ARGV[3]
--!include prelude.lua
--!include now.lua
--!include spread_due_lots.lua
--!include compare_and_note_code.lua
--!include config_format.lua

if call('EXISTS', DUE_LOTS) == 0 then return {int(now), 0} end
local since, resumed = select(9, match(call('GET', CONFIG_KEY) or '', CONFIG)) -- the last two parts
if code ~= '' and not same_code(code) then known = -1 end
local weighed = tonumber(match(call('HGET', WEIGHTS, '\0') or '', '(%d+) %S* $')) or 0 -- the last change of a weight
if known >= 0 and max(since or 0, resumed or 0, weighed) <= known then
    return {int(now), 0} -- the change concerns one of its keys, and that key was touched
end
local span = span_of_lots()
local far = call('ZRANGEBYSCORE', DUE_LOTS, '(' .. int(now + span), '+inf', 'LIMIT', 0, MOST)
local ahead = span > 0 and call('ZCOUNT', DUE_LOTS, int(now), int(now + span)) or 0
for i = 1, #far do
    call('ZADD', DUE_LOTS, 'XX', 'LT', int(min(now + span, now + (span > 0 and (ahead + i) * EACH_US or 0))), far[i])
end
return {int(now), #far}
