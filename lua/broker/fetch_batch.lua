-- fetch_batch: messages of one of the broker's queues that come in together. It is run by the broker, on kombu's keys.
--
-- Each is noted as unacknowledged in the step in which it leaves its queue.
-- KEYS   1  queue     list; its right end is taken first
--        2  unacked   hash, delivery tag -> [message, exchange, routing key] as JSON
--        3  index     sorted set, delivery tag -> seconds since 1970
-- ARGV   1  most      >= 1: no more messages
--        2  bytes     >= 1: no more when they are that long
--        3  now       seconds since 1970, by the worker's clock, as kombu notes it
-- Reply  delivery tag and message of each, one after the other
-- Writes all three
local QUEUE, UNACKED, INDEX = KEYS[1], KEYS[2], KEYS[3]
local MOST, BYTES, NOW = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3]
local call = redis.call

-- The delivery tag, exchange and routing key of a message; nothing of what is none: that is kombu's to say.
local function read(text)
    local is_read, message = pcall(cjson.decode, text)
    local properties = is_read and type(message) == 'table' and message.properties
    local info = type(properties) == 'table' and properties.delivery_info
    if type(info) ~= 'table' or type(properties.delivery_tag) ~= 'string' then return end
    if type(info.exchange) == 'string' and type(info.routing_key) == 'string' then
        return properties.delivery_tag, info.exchange, info.routing_key
    end
end

local taken, bytes = {}, 0
while #taken < 2 * MOST do
    local text = call('LINDEX', QUEUE, -1)
    if not text then break end
    bytes = bytes + #text
    if bytes > BYTES then break end
    local tag, exchange, routing_key = read(text)
    if not tag then break end
    call('ZADD', INDEX, NOW, tag)
    call('HSET', UNACKED, tag, '[' .. text .. ', ' .. cjson.encode(exchange) .. ', ' .. cjson.encode(routing_key) .. ']')
    call('RPOP', QUEUE)
    taken[#taken + 1] = tag
    taken[#taken + 1] = text
end
return taken
