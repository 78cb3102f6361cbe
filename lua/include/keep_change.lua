-- Notes what people have changed of a limit: the last hundred changes of the limit and all of its keys, in the step that makes each.
--
-- history key, one for each limit: list, the newest first, of
--   "<us> <verb> <bytes of key> <bytes of note> <bytes of before>\n<key><note><before><after>"
-- `key` is that of the bucket, '' for the whole limit; `before` and `after` are what was and is stored there, see config_format.lua.
-- Expires a year after the last.
--
-- Gives keep_change(history, verb, key, note, before, after).
local CHANGES_KEPT = 100
local function keep_change(history, verb, key, note, before, after)
    call('LPUSH', history, format('%d %s %d %d %d\n', now, verb, #key, #note, #before) .. key .. note .. before .. after)
    call('LTRIM', history, 0, CHANGES_KEPT - 1)
    call('PEXPIRE', history, '31536000000')
end
