-- Gives weight_in_code(weights, share): what a share weighs in the code, 1 if that says nothing of it; `weights` as in next_share.lua.
local function weight_in_code(weights, share)
    local _, at = string.find(weights, '\0' .. share .. ' ', 1, true)
    return at and match(weights, '^[^%z]+', at + 1) or 1
end
