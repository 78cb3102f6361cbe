-- Gives shares.of(message), the share of a task by what is kept in `messages`; nothing where it has none. See shares.lua.
--
-- Uses shares of shares.lua.
function shares.of(message)
    if string.byte(message, -2) == 125 then return nil end -- }}
    local last = string.sub(message, -130)
    return match(last, '"share": "([^"]*)"}$') or match(last, '"share": "([^"]*)", "order": %-?%d+}$')
end
