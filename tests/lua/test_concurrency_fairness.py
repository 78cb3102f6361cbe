"""Leases of several permits, asked for by callers that wait: two limits at once, and beside callers that need few."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
import redis

from celery_ratelimit import Concurrency, Limiter
from celery_ratelimit.limiter.blocking_acquire import nap
from celery_ratelimit.limiter.limit_request import LimitRequest
from celery_ratelimit.limiter.script_calls import LeaseRequests, LeasesToRelease
from celery_ratelimit.testing import EmbeddedServer
from celery_ratelimit.worker.concurrency import release_and_acquire
from tests.conftest import PATIENT, Clock

G, M = Concurrency(4, name="gpu"), Concurrency(4, name="mem")


def both(gpu: int, mem: int) -> list[LimitRequest]:
    return [LimitRequest(G, "gpu", "", gpu), LimitRequest(M, "mem", "", mem)]


@pytest.mark.parametrize("seed", range(8))
def test_two_requests_of_two_limits_do_not_deadlock(frozen: Limiter, clock: Clock, seed: int) -> None:
    """Two callers hold 1 + 4 or 4 + 1 places for 0.05 s, call after call, and nap as blocking calls do."""
    luck, holds = random.Random(seed), dict[str, int]()
    wants = {id: luck.choice([(1, 4), (4, 1)]) for id in "ab"}
    number, at, idle_since = dict.fromkeys(wants, 0), dict.fromkeys(wants, clock.us), clock.us
    for _ in range(500):
        caller = min(at, key=lambda each: (at[each], luck.random()))
        clock.advance(max(0, at[caller] - clock.us) / 1e6)
        id, demands = f"{caller}{number[caller]}", both(*wants[caller])
        if caller in holds:
            frozen._asker.release([LeasesToRelease(id, demands, holds.pop(caller))])
            number[caller] += 1
            wants[caller] = luck.choice([(1, 4), (4, 1)])
            at[caller] = clock.us + luck.choice([0, 1000, 100_000])
            idle_since = idle_since if holds else clock.us
            continue
        asking = LeaseRequests([id], 0, 3_600_000_000, "@", 1, False)  # as a blocking call does, at each try
        (decision,) = release_and_acquire(frozen._asker, demands, asking, [])
        if decision:
            holds[caller], idle_since, at[caller] = clock.us, clock.us, clock.us + 50_000 + luck.randint(0, 3000)
        else:
            at[caller] = clock.us + round(nap(decision) * 1e6) + luck.randint(300, 3000)
        idle = (clock.us - idle_since) / 1e6
        assert holds or idle < 5, f"all eight places were free for {idle:.1f} s, and both wait: {wants}"


@contextmanager
def small_callers(limiter: Limiter, number: int, seconds: float) -> Iterator[None]:
    """So many threads that hold one place for 0.2 s, call after call, and have done so for some seconds."""
    stop = threading.Event()

    def light() -> None:
        while not stop.is_set():
            with limiter.permit(G):
                time.sleep(0.2)

    with ThreadPoolExecutor(number) as threads:
        for _ in range(number):
            threads.submit(light)
        time.sleep(seconds)
        try:
            yield
        finally:
            stop.set()


@pytest.mark.parametrize("callers", [3, 8])
def test_small_callers_do_not_starve_a_large_one(server: EmbeddedServer, store: redis.Redis, callers: int) -> None:
    limiter = Limiter.from_url(server.url + PATIENT)
    with small_callers(limiter, callers, seconds=1):
        decision = limiter.acquire(G, cost=4, max_wait=60)
        limiter.release(decision)
    assert decision.allowed, "each of the others was served many times meanwhile"


def test_estimated_wait_shrinks_as_leases_end(server: EmbeddedServer, store: redis.Redis) -> None:
    limiter = Limiter.from_url(server.url + PATIENT)
    with small_callers(limiter, 5, seconds=6):
        decision = limiter.acquire(G, max_wait=3)
    assert decision.allowed, f"five callers, four places, 0.2 s each: told to come back in {decision.retry_after:.1f} s"
