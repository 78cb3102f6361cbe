"""A limiter on a clock that stands still until it is moved: the real scripts on a real server, and nobody waits."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import redis

from celery_ratelimit import Limiter
from celery_ratelimit.testing import embedded_server

#: Takes the place of ``lua/include/now.lua``: a clock that stands still until it is set. Keys live an hour longer: the
#: server expires them by its own clock, which goes on.
STANDING = """
local now = tonumber(redis.call('GET', 'test:clock'))
local function call(command, ...)
    local words = {...}
    if command == 'PEXPIRE' then words[2] = words[2] + 3600000 end
    if words[3] == 'PX' then words[4] = words[4] + 3600000 end
    return redis.call(command, unpack(words))
end
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
