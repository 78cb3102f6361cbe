"""A store whose time stands still, its expiry included, until a test moves it.

The frozen clock alone is not enough: keys would still expire by the server's own time, in 10 ms at 100/s, between
two rows of a table. So the text that takes the place of ``lua/include/now.lua`` also keeps every time to live in
frozen time (hash ``test:expires``, key to microseconds) and lets the server keep the key for an hour. What the
script asked for is still sent to the server first: a time to live that it would refuse fails here too.
"""

from __future__ import annotations

from fractions import Fraction

import redis

from celery_ratelimit import Decision, Limit
from celery_ratelimit.limiter.limit_request import LimitRequest

FROZEN_STORE = """
local now = tonumber(redis.call('GET', 'test:clock'))
local server = redis
for _, key in ipairs(KEYS) do
    local expires = server.call('HGET', 'test:expires', key)
    if expires and tonumber(expires) <= now then
        server.call('DEL', key)
        server.call('HDEL', 'test:expires', key)
    end
end
local function keep(key, ms)
    server.call('PEXPIRE', key, 3600000)
    server.call('HSET', 'test:expires', key, string.format('%.0f', now + tonumber(ms) * 1000))
end
local redis = {error_reply = server.error_reply, pcall = server.pcall}
function redis.call(verb, key, ...)
    local rest = {...}
    local reply = server.call(verb, key, ...)
    if verb == 'SET' then server.call('HDEL', 'test:expires', key) end
    if verb == 'SET' and rest[2] == 'PX' then keep(key, rest[3]) end
    if verb == 'PEXPIRE' then keep(key, rest[1]) end
    if verb == 'PTTL' and reply > 0 then
        reply = math.floor((tonumber(server.call('HGET', 'test:expires', key)) - now) / 1000)
    end
    return reply
end
local call = redis.call
"""


def us(seconds: float | Fraction) -> int:
    """Seconds of the public API as the whole microseconds that they stand for."""
    return round(seconds * 1_000_000)


def demand(rate: str, *, burst: int = 1, cost: int = 1, name: str = "api", key: str = "") -> LimitRequest:
    """What a call asks of one limit."""
    return LimitRequest(Limit(rate, burst=burst, name=name), name, key, cost)


def answer(decision: Decision) -> tuple[bool, int]:
    """Whether a decision allows, and its wait in microseconds."""
    return decision.allowed, us(decision.retry_after)


def expiries(store: redis.Redis) -> dict[str, int]:
    """When every key of ours expires, in frozen microseconds; a key that never does is missing."""
    known = store.hgetall("test:expires")
    return {key: int(known[key]) for key in store.scan_iter("ratelimit:*") if key in known}
