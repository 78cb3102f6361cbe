-- set_shadow: put a limit into shadow for all processes, or in force, whatever the code says; or leave it to the code again.
--
-- KEYS   1  config of the name, see include/config_format.lua; 2  changes, see include/change_config.lua; 3  what was touched, see
--        include/mark_for_recheck.lua; 4  history, see include/keep_change.lua; 5  key_settings, see include/change_config.lua; 6  shadow;
--        7  arrivals, 8  queues, 9  ends, 10 shadow_report, see simulate_shadow.lua
-- ARGV   1  flag      1: in shadow; 0: in force; '': as the code says
--        2  note      text: what only clients read
-- Reply  1 if that is something else than before, else 0
-- Writes shadow: string, "<flag> <us since>", a line feed and the note; config, history. shadow has no time to live, nor has config
--        while it says so: an operator decided it. The virtual queues are emptied, and the simulated results are deleted, but for
--        readers of the report after its end.
local CONFIG_KEY, CHANGES, TOUCHED, HISTORY, KEY_SETTINGS, SHADOW, ARRIVALS, QUEUES, ENDS, REPORT = unpack(KEYS)
local BUCKET = '' -- the whole limit
local flag, NOTE = ARGV[1], ARGV[2]
--!include prelude.lua
--!include now.lua
--!include change_config.lua

local before = match(call('GET', SHADOW) or '', '^%d?')
if before == flag then return 0 end
if flag == '' then call('DEL', SHADOW) else call('SET', SHADOW, format('%s %s\n%s', flag, int(now), NOTE)) end
config.mark, config.resumed = flag == '1' and '0' or '', now -- slots from before this are void
write_config()
keep_change(HISTORY, 'shadow', BUCKET, NOTE, before, flag)
tell()
for _, key in ipairs({ARRIVALS, QUEUES, ENDS, flag ~= '0' and REPORT or nil}) do call('DEL', key) end
return 1
