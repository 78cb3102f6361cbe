-- For a script that only reads: the algorithms note changes when they check a limit, and here nothing is noted.
--
-- Uses call and read_only, see prelude.lua. Gives both anew: commands that write are not sent, and read_only is true.
local READS = {
    EXISTS = true, GET = true, HGET = true, LINDEX = true, LLEN = true, LRANGE = true, MGET = true, ZCARD = true, ZCOUNT = true,
    ZRANGE = true, ZRANGEBYSCORE = true, ZRANK = true, ZSCORE = true,
}
local send = call
call = function(command, ...)
    if READS[command] then return send(command, ...) end
end
read_only = true
