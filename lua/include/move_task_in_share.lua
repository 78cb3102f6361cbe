-- A task that is parked has another place: `other`, of which `its` was kept in `payloads`, and is `kept`. See shares.lua.
--
-- Uses SHARES of lot.lua; SHARE, place_in of task_record.lua; shares of shares.lua.
local its_share = match(its, SHARE)
if call('ZREM', SHARES, shares.entry(its_share, place_in(its), other)) == 1 then
    call('ZADD', SHARES, 0, shares.entry(its_share, place_in(kept), other))
end
