"""Twenty callers at once, in threads and with asyncio: when another algorithm is stored, and in a new process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import pairwise
from typing import Any

import pytest
import redis

from celery_ratelimit import Decision, Limit, Limiter
from celery_ratelimit.testing import EmbeddedServer
from tests.conftest import PATIENT
from tests.integration.limiter.either import KINDS, EitherLimiter, opened

CALLERS = 20
QUOTAS = {name: Limit("1000/s", burst=1000, name=name) for name in ("api", "other")}
STORED = [
    Limit("1000/s", algorithm="sliding_log"),
    Limit("1000/s", algorithm="fixed_window"),
    Limit("1000/s", algorithm="sliding_window"),
    Limit("1000/s", burst=1000, refill="interval"),
    Limit("1000/s", burst=1000),
]


def at_once(limiter: EitherLimiter, limits: Any) -> list[Decision]:
    """The decisions of all callers, which ask at the same time."""
    if limiter.is_async:

        async def together() -> list[Decision]:
            return list(await asyncio.gather(*[limiter.limiter.acquire(limits) for _ in range(CALLERS)]))

        decisions: list[Decision] = limiter.wait_for(together())
        return decisions
    barrier = threading.Barrier(CALLERS)

    def call(_: int) -> Decision:
        barrier.wait()
        decision: Decision = limiter.acquire(limits)
        return decision

    with ThreadPoolExecutor(CALLERS) as threads:
        return list(threads.map(call, range(CALLERS)))


@pytest.fixture(params=KINDS)
def make(request: pytest.FixtureRequest, server: EmbeddedServer, store: redis.Redis) -> Iterator[Callable[[], Any]]:
    """Makes a limiter as another process would: it has run nothing yet."""
    with ExitStack() as stack:

        def made(kind: Any) -> Any:
            return kind.from_url(server.url + PATIENT, quotas=QUOTAS)

        yield lambda: stack.enter_context(opened(request.param, made))


def test_stored_algorithms_reach_all_simultaneous_callers(make: Callable[[], Any], limiter: Limiter) -> None:
    callers = make()
    limiter.quotas.update(QUOTAS)
    for one, two in pairwise(STORED):
        limiter.set_rate("api", one)
        limiter.set_rate("other", two)
        for limits in ("api", ["api", "other"]):
            assert all(decision.allowed for decision in at_once(callers, limits)), (one, two)
        limiter.reset(["api", "other"])


def test_first_callers_of_a_process_load_the_scripts_of_a_stored_algorithm(
    make: Callable[[], Any], limiter: Limiter, store: redis.Redis
) -> None:
    limiter.quotas.update(QUOTAS)
    for stored in STORED:
        limiter.set_rate("api", stored)
        store.script_flush()
        assert all(decision.allowed for decision in at_once(make(), "api")), stored
        limiter.reset("api")
