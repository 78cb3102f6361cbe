local call, format, match = redis.call, string.format, string.match
local floor, ceil, max, min = math.floor, math.ceil, math.max, math.min

-- A whole number as text. Left to itself, Redis writes some numbers with an exponent (7.2.0 to 7.2.4).
local function int(number)
    return format('%d', number)
end
