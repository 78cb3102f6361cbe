-- wake: a limit is another one than it was: somebody has to look after its lots before the time that was foreseen.
--
-- Few are due at once. Many are looked after one after the other, so that who is at work need not stand behind them. Called until
-- it has moved fewer than `most`; by several workers it comes to the same.
-- KEYS   1  lots, 2  code, see include/lot.lua; 3  config of the name, see include/stored.lua
-- ARGV   1  since     us: the last change of what is stored for the whole limit for which this was done; -1: it has changed
--        2  most      of lots that are moved
--        3  code      text: the limit as it is in the caller's code; '': do not ask
-- Reply  us of this clock, how many were moved
-- Writes lots, code
local LOTS, CODE = KEYS[1], KEYS[2]
--!include prelude.lua
--!include now.lua
--!include queue_of_lots.lua
--!include code.lua

if call('EXISTS', LOTS) == 0 then return {int(now), 0} end
local since, resumed = match(call('GET', KEYS[3]) or '', '^%S+ %S+ %S+ %S+ %S+ %S+ %S+ %S+ (%d+) (%d+)')
local known = tonumber(ARGV[1])
if ARGV[3] ~= '' and not same_code(ARGV[3]) then known = -1 end
if known >= 0 and (not since or max(since, resumed) <= known) then
    return {int(now), 0} -- one of its keys was changed, and that was touched
end
local span = span_of_lots()
local far = call('ZRANGEBYSCORE', LOTS, '(' .. int(now + span), '+inf', 'LIMIT', 0, ARGV[2])
local ahead = span > 0 and call('ZCOUNT', LOTS, int(now), int(now + span)) or 0
for i = 1, #far do
    call('ZADD', LOTS, 'XX', 'LT', int(min(now + span, now + (span > 0 and (ahead + i) * EACH_US or 0))), far[i])
end
return {int(now), #far}
