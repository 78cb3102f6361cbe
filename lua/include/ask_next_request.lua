-- Whether those behind a request are asked, too: it has its permits, or a slot that is kept for it. Else they would have neither.
--
-- Uses match and CLAIM_US. Gives goes_on(answer): of the reply of a decision.
local function goes_on(answer)
    if match(answer, '^1') then return true end
    local wait = match(answer, '^0 (%d+)')
    return wait and wait + 0 <= CLAIM_US
end
