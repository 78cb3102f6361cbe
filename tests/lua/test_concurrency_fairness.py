"""Leases of several permits, asked for by callers that wait: two limits at once, and beside callers that need few."""

from __future__ import annotations

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis

from celery_ratelimit import Concurrency, Decision, Limiter
from celery_ratelimit.limiter.blocking_acquire import nap
from celery_ratelimit.limiter.limit_request import LimitRequest
from celery_ratelimit.limiter.script_calls import LeaseRequests, LeasesToRelease
from celery_ratelimit.testing import EmbeddedServer
from celery_ratelimit.worker.concurrency import release_and_acquire
from tests.conftest import PATIENT, Clock

G, M = Concurrency(4, name="gpu"), Concurrency(4, name="mem")


def both(gpu: int, mem: int) -> list[LimitRequest]:
    return [LimitRequest(G, "gpu", "", gpu), LimitRequest(M, "mem", "", mem)]


def ask_again(limiter: Limiter, id: str, demands: list[LimitRequest]) -> Decision:
    """As a blocking call does, at each try."""
    asking = LeaseRequests([id], 0, 3_600_000_000, "@", 1, False)
    return release_and_acquire(limiter._asker, demands, asking, [])[0]


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
        decision = ask_again(frozen, id, demands)
        if decision:
            holds[caller], idle_since, at[caller] = clock.us, clock.us, clock.us + 50_000 + luck.randint(0, 3000)
        else:
            at[caller] = clock.us + round(nap(decision) * 1e6) + luck.randint(300, 3000)
        idle = (clock.us - idle_since) / 1e6
        assert holds or idle < 5, f"all eight places were free for {idle:.1f} s, and both wait: {wants}"


def test_two_blocking_callers_do_not_deadlock(server: EmbeddedServer, store: redis.Redis) -> None:
    limiter = Limiter.from_url(server.url + PATIENT, counts=False)

    def loop(gpu: int, mem: int) -> None:
        limits = [Concurrency(4, name="gpu", cost="g"), Concurrency(4, name="mem", cost="m")]
        for _ in range(10):
            decision = limiter.acquire(limits, args={"g": gpu, "m": mem}, max_wait=60)
            assert decision, "all places have been free for a minute"
            time.sleep(0.05)
            limiter.release(decision)

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(loop, (1, 4), (4, 1)))


@pytest.mark.parametrize("callers", [3, 8])
def test_small_callers_do_not_starve_a_large_one(server: EmbeddedServer, store: redis.Redis, callers: int) -> None:
    limiter, stop = Limiter.from_url(server.url + PATIENT), threading.Event()

    def light() -> None:
        while not stop.is_set():
            with limiter.permit(G, cost=1):
                time.sleep(0.2)

    threads = [threading.Thread(target=light) for _ in range(callers)]
    for thread in threads:
        thread.start()
    time.sleep(1)
    got: list[bool] = []

    def heavy() -> None:
        decision = limiter.acquire(G, cost=4, max_wait=None)
        got.append(decision.allowed)
        limiter.release(decision)

    waiting = threading.Thread(target=heavy, daemon=True)
    waiting.start()
    waiting.join(60)
    stop.set()
    for thread in threads:
        thread.join()
    assert got == [True], "each of the others was served many times meanwhile"


def test_estimated_wait_shrinks_as_leases_end(server: EmbeddedServer, store: redis.Redis) -> None:
    limiter, stop = Limiter.from_url(server.url + PATIENT), threading.Event()

    def light() -> None:
        while not stop.is_set():
            with limiter.permit(G):
                time.sleep(0.2)

    threads = [threading.Thread(target=light) for _ in range(5)]
    for thread in threads:
        thread.start()
    time.sleep(6)
    decision = limiter.acquire(G, max_wait=3)
    stop.set()
    for thread in threads:
        thread.join()
    assert decision.allowed, f"five callers, four places, 0.2 s each: told to come back in {decision.retry_after:.1f} s"
