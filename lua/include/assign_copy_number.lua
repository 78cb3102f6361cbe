-- There may be a copy of a task at the broker that is not known of.
--
-- Uses MEMORY_US, for which it is remembered; a lot, see lot.lua: PAYLOADS, VALID_COPY, without, copies, note_copies.
-- Gives note_for_a_while(id, chosen, newest, tokens), which is note_copies for MEMORY_US; renew_copy(id, is_chosen): the task gets the
-- number of another copy. Of its copies that one may run, if `is_chosen`, else the one that arrives first. Returns what is kept in
-- `payloads` from now on; nothing: no message is.
local function note_for_a_while(id, chosen, newest, tokens)
    note_copies(id, chosen, newest, tokens)
    call('PEXPIRE', VALID_COPY, int(ceil(MEMORY_US / 1000)))
end

local function renew_copy(id, is_chosen)
    local cost, copy, rest = match(call('HGET', PAYLOADS, id) or '', '^(%d+) (%d+) (.*)$')
    if not cost then return nil end
    local _, newest, tokens = copies(id)
    newest = max(copy, newest or 0) + 1
    local message = format('%s %d ', cost, newest) .. rest
    call('HSET', PAYLOADS, id, message)
    note_for_a_while(id, is_chosen and int(newest) or '-', newest, without(tokens, '*') and tokens or (tokens or ',') .. '*,')
    return message
end
