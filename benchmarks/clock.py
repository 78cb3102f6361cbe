"""A limiter on a clock that stands still until it is moved: the real scripts on a real server, and nobody waits."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import redis

from celery_ratelimit import Limiter
from celery_ratelimit.testing import embedded_server

#: Takes the place of ``lua/include/now.lua``. Keys would expire by the server's own time, so every time to live becomes
#: an hour; what a key says when it ought to have expired is nothing that matters any more.
STANDING = """
local ask = call
local function call(verb, key, ...)
    local rest = {...}
    if verb == 'SET' then rest[3] = 3600000 elseif verb == 'PEXPIRE' then rest[1] = 3600000 end
    return ask(verb, key, unpack(rest))
end
local now = tonumber(call('GET', 'test:clock'))
"""
#: Where the clock begins, in microseconds: at a whole hour.
START = 1_700_000_400 * 1_000_000 - 1_700_000_400 * 1_000_000 % 3_600_000_000


class StandingClock:
    """The clock; times are whole microseconds since it began."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        self.limiter = Limiter(client, replace_includes={"now": STANDING})
        self.set(0)

    def set(self, now: int) -> None:
        self._client.set("test:clock", START + now)


@contextlib.contextmanager
def standing_clock() -> Iterator[StandingClock]:
    """A server of its own, stopped at the end of the block."""
    with embedded_server() as server, redis.Redis.from_url(server.url) as client:
        yield StandingClock(client)


def us(seconds: float) -> int:
    """Seconds as whole microseconds."""
    return round(seconds * 1_000_000)
