-- set_weight: store the weight of one share of a limit, in place of the code's.
--
-- KEYS   1  config of the name, see include/config_format.lua; 2  changes, see include/change_config.lua; 3  what was touched, see
--        include/mark_for_recheck.lua; 4  history, see include/keep_change.lua; 5  key_settings, see
--        include/change_config.lua; 6  weights, see include/shares.lua
-- ARGV   1  share     text
--        2  weight    number, >= 0; '': the code's again
--        3  note      text: what only clients read
-- Reply  1; for the code's: 1 if one was stored, else 0
-- Writes weights, history; weights have no time to live: an operator decided them
local CONFIG_KEY, CHANGES, TOUCHED, HISTORY, KEY_SETTINGS, WEIGHTS = unpack(KEYS)
local BUCKET = '' -- the whole limit
local share, weight, NOTE = ARGV[1], ARGV[2], ARGV[3]
--!include prelude.lua
--!include now.lua
--!include change_config.lua

local LAST, MOST_CHANGES = '\0', 50

local changes = call('HGET', WEIGHTS, LAST) or ''
local last = tonumber(match(changes, '(%d+) %S* $')) or 0
local at = max(now, last + 1)
local before = match(call('HGET', WEIGHTS, share) or '', '^%S+') or ''
if weight == '' then
    if call('HDEL', WEIGHTS, share) == 0 then return 0 end
else
    call('HSET', WEIGHTS, share, format('%s %s %s', weight, int(now), NOTE))
end
changes = changes .. int(at) .. ' ' .. share .. ' '
if select(2, string.gsub(changes, ' ', '')) > 2 * MOST_CHANGES then changes = match(changes, '^%d+ %S* (.*)$') end
call('HSET', WEIGHTS, LAST, changes)
keep_change(HISTORY, 'weight', BUCKET, NOTE, before, weight)
tell()
return 1
