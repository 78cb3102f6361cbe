"""Twenty callers at once, with asyncio and in threads: when another algorithm is stored, and in a new process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import pytest
import redis

from celery_ratelimit import AsyncLimiter, Decision, Limit, Limiter
from celery_ratelimit.testing import EmbeddedServer
from tests.conftest import PATIENT

CALLERS = 20
API = Limit("1000/s", burst=1000, name="api")
OTHER = Limit("1000/s", burst=1000, name="other")

STORED = [
    Limit("1000/s", algorithm="sliding_log"),
    Limit("1000/s", algorithm="fixed_window"),
    Limit("1000/s", algorithm="sliding_window"),
    Limit("1000/s", burst=1000, refill="interval"),
    Limit("1000/s", burst=1000),
]

#: Lets all callers ask at once: twenty times what ``acquire(limits)`` of one limiter answers.
AtOnce = Callable[[Any], list[Decision]]


class Threads:
    def __init__(self, url: str) -> None:
        self._limiter = Limiter.from_url(url, quotas={"api": API, "other": OTHER})
        self._threads = ThreadPoolExecutor(CALLERS)
        self._together = threading.Barrier(CALLERS)

    def at_once(self, limits: Any) -> list[Decision]:
        def call(_: int) -> Decision:
            self._together.wait()
            return self._limiter.acquire(limits)

        return list(self._threads.map(call, range(CALLERS)))

    def close(self) -> None:
        self._threads.shutdown()


class Tasks:
    def __init__(self, url: str) -> None:
        self._limiter = AsyncLimiter.from_url(url, quotas={"api": API, "other": OTHER}, max_connections=CALLERS)
        self._loop = asyncio.new_event_loop()

    def at_once(self, limits: Any) -> list[Decision]:
        async def together() -> list[Decision]:
            return list(await asyncio.gather(*[self._limiter.acquire(limits) for _ in range(CALLERS)]))

        return self._loop.run_until_complete(together())

    def close(self) -> None:
        self._loop.run_until_complete(self._limiter.aclose())
        self._loop.close()


@pytest.fixture(params=[Threads, Tasks])
def make(request: pytest.FixtureRequest, server: EmbeddedServer, store: redis.Redis) -> Iterator[Callable[[], Any]]:
    """Makes callers of one kind, each time as another process would have them: that has run nothing yet."""
    made: list[Any] = []

    def new() -> Any:
        made.append(request.param(server.url + PATIENT))
        return made[-1]

    yield new
    for each in made:
        each.close()


@pytest.fixture
def changing(server: EmbeddedServer) -> Limiter:
    return Limiter.from_url(server.url + PATIENT, quotas={"api": API, "other": OTHER})


def test_stored_algorithm_reaches_all_simultaneous_callers(make: Callable[[], Any], changing: Limiter) -> None:
    callers = make()
    for stored in STORED:
        assert changing.set_rate("api", stored)
        assert all(decision.allowed for decision in callers.at_once("api")), stored
        changing.reset("api")


def test_two_stored_algorithms_reach_all_simultaneous_callers(make: Callable[[], Any], changing: Limiter) -> None:
    callers = make()
    for one, two in pairwise(STORED):
        changing.set_rate("api", one)
        changing.set_rate("other", two)
        assert all(decision.allowed for decision in callers.at_once(["api", "other"])), (one, two)
        changing.reset(["api", "other"])


def test_first_callers_of_a_process_load_the_scripts_of_a_stored_algorithm(
    make: Callable[[], Any], changing: Limiter, store: redis.Redis
) -> None:
    for stored in STORED:
        changing.set_rate("api", stored)
        store.script_flush()
        assert all(decision.allowed for decision in make().at_once("api")), stored
        changing.reset("api")
