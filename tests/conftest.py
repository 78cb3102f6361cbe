"""Servers for the suite: started once on free loopback ports, emptied before every test, stopped at the end."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from celery_ratelimit import Limiter
from celery_ratelimit.testing import EmbeddedServer, embedded_server

#: In place of ``lua/include/now.lua``: a clock that stands still until a test moves it.
FROZEN_NOW = "local now = tonumber(redis.call('GET', 'test:clock'))\n"

#: 2026-01-01, in microseconds.
START = 1_767_225_600_000_000


@pytest.fixture(scope="session")
def server() -> Iterator[EmbeddedServer]:
    """The real store that most tests share; which one is ``$RATELIMIT_TEST_SERVER``'s choice."""
    with embedded_server() as running:
        yield running


@pytest.fixture
def store(server: EmbeddedServer) -> Iterator[redis.Redis]:
    """A client of the store, which is empty; after the test every key of ours must expire by itself (law 9)."""
    with redis.Redis.from_url(server.url, decode_responses=True) as client:
        client.flushall()
        yield client
        eternal = [key for key in client.scan_iter("ratelimit:*") if client.pttl(key) == -1]
        assert not eternal, f"keys without a time to live: {eternal}"


@pytest.fixture
def limiter(server: EmbeddedServer, store: redis.Redis) -> Limiter:
    """A limiter on the real clock."""
    return Limiter.from_url(server.url)


class Clock:
    """The frozen clock of a store, in microseconds since 1970."""

    def __init__(self, store: redis.Redis) -> None:
        self._store = store
        self.set(START)

    def set(self, us: int) -> None:
        self.us = us
        self._store.set("test:clock", us)

    def advance(self, seconds: float) -> None:
        self.set(self.us + round(seconds * 1e6))


@pytest.fixture
def clock(store: redis.Redis) -> Clock:
    return Clock(store)


@pytest.fixture
def frozen(server: EmbeddedServer, clock: Clock) -> Limiter:
    """A limiter whose scripts read ``clock`` instead of the time."""
    client = redis.Redis.from_url(server.url)
    return Limiter(client, replace_includes={"now": FROZEN_NOW})
