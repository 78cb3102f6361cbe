"""Many processes and threads on the real clock: by the store's own log, each call got what the model gives it."""

from __future__ import annotations

import math
import multiprocessing
import threading
import time
from collections import defaultdict, deque
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import pytest
import redis

from celery_ratelimit import Limit, Limiter
from celery_ratelimit.limiter.limit_request import LimitRequest
from celery_ratelimit.testing import EmbeddedServer
from tests.conftest import PATIENT
from tests.integration.limiter.callers import Asked, Call, Told, as_answered, ask_for, limiter_on, log_of
from tests.lua.frozen import demand
from tests.lua.model import Model
from tests.lua.windows import Start, check_every_window

WANTED = [demand("200/s", burst=5, name="fast"), demand("150/s", burst=20, cost=1, name="wide")]
SECONDS = 1.0


@pytest.mark.parametrize("kind", ["processes", "threads"])
def test_every_interleaving_agrees_with_the_model_and_keeps_the_law(
    server: EmbeddedServer, store: redis.Redis, kind: str
) -> None:
    log, asked = hammer(server, store, kind)
    answers: dict[str, deque[Asked]] = defaultdict(deque)
    for each in asked:
        answers[each.id].append(each)
    model = Model(0)
    starts: list[Start] = []
    for model.now, id in log:  # scripts run one after the other: the log is the truth about their order
        told = answers[id].popleft()
        assert told.answer == model.acquire(WANTED, id, told.horizon, told.claim)
        if told.answer.allowed:
            starts.append(Start(model.now + told.answer.wait, 1))
    assert not any(answers.values()), "every reply belongs to a call"
    for limit in WANTED:
        check_every_window(starts, limit)


def hammer(server: EmbeddedServer, store: redis.Redis, kind: str) -> tuple[list[Call], list[Asked]]:
    """Four callers for ``SECONDS``: processes, or threads that share one limiter. The store's log, and their own."""
    if kind == "processes":
        context = multiprocessing.get_context("spawn")
        barrier = context.Barrier(4)
        with ProcessPoolExecutor(4, context, initializer=meet, initargs=(barrier,)) as pool:
            parts = list(pool.map(in_process, [server.url] * 4, range(4)))
    else:
        limiter = limiter_on(server.url)
        with ThreadPoolExecutor(4) as threads:
            parts = list(threads.map(lambda n: ask_for(limiter, WANTED, f"t{n}", SECONDS), range(4)))
    return log_of(store), [each for part in parts for each in part]


def meet(barrier: Any) -> None:
    """Processes start at different times and hammer together."""
    barrier.wait(timeout=30)


def in_process(url: str, number: int) -> list[Asked]:
    return ask_for(limiter_on(url), WANTED, f"p{number}", SECONDS)


def test_callers_without_patience_get_the_rate_and_no_more(server: EmbeddedServer, store: redis.Redis) -> None:
    """Whoever asks when a permit is free has it, and nobody else."""
    wanted = [demand("200/s", burst=5)]
    stop = time.monotonic() + 1.0
    limiter = limiter_on(server.url)

    def insist(name: str) -> list[str]:
        ids: list[str] = []
        while time.monotonic() < stop:
            id = f"{name}-{len(ids)}"
            ids.append(id if limiter._asker.ask(wanted, id=id).allowed else "")
        return ids

    with ThreadPoolExecutor(4) as threads:
        granted = {id for part in threads.map(insist, "abcd") for id in part if id}
    model = Model(0)
    starts: list[Start] = []
    for model.now, id in log_of(store):
        assert model.acquire(wanted).allowed == (id in granted)
        if id in granted:
            starts.append(Start(model.now, 1))
    check_every_window(starts, wanted[0])
    assert len(starts) == len(granted)


def test_blocking_calls_are_served_in_order_at_the_rate(
    server: EmbeddedServer, store: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight threads take ten permits each, one after the other: no slot is left out, and who waits wakes at its own."""
    monkeypatch.setattr("celery_ratelimit.limiter.blocking_acquire._good_now", as_answered)
    limiter = Limiter.from_url(server.url + PATIENT)
    limit = Limit("100/s", name="api")

    def call(_: int) -> tuple[Told, float]:
        decision = limiter.acquire(limit, max_wait=5.0)
        return Told.of(decision), time.time()

    with ThreadPoolExecutor(8) as threads:
        served = sorted(threads.map(call, range(80)), key=lambda each: each[0].at)
    assert len(served) == 80
    assert all(told.allowed for told, _ in served)
    # By the store's clock: the next slot, or at once if nobody waits. A step back of the clock (ADR 7) is waited for.
    gaps = [told.at - before.at for (before, _), (told, _) in pairwise(served)]
    assert min(gaps) >= 10_000
    for gap, (before, _), (told, _) in zip(gaps, served, served[1:], strict=False):
        assert gap <= max(10_000, told.asked - before.at) + 1_000
    assert min(woken - told.at / 1e6 for told, woken in served) >= -0.001, "nobody returns before its permit is good"


def test_blocking_calls_come_in_the_order_in_which_they_asked(server: EmbeddedServer, store: redis.Redis) -> None:
    """Slots are further apart than threads are slow, so the order of service is that of arrival, exactly."""
    limiter = Limiter.from_url(server.url)
    limit = Limit("20/s", name="api")
    limiter.acquire(limit)
    order: list[int] = []
    threads = []

    def call(number: int) -> None:
        assert limiter.acquire(limit, max_wait=5.0).allowed
        order.append(number)

    for number in range(8):
        before = states(store)
        thread = threading.Thread(target=call, args=(number,))
        thread.start()
        threads.append(thread)
        while states(store) == before:  # until it has asked
            pass
    for thread in threads:
        thread.join()
    assert order == list(range(8))


def states(store: redis.Redis) -> tuple[Any, ...]:
    return store.get("ratelimit:v1:{api}::state"), tuple(store.zrange("ratelimit:v1:{api}::slots", 0, -1))


def test_a_blocking_call_that_could_not_be_served_in_time_is_refused_at_once(limiter: Limiter) -> None:
    limit = Limit("1/m", name="api")
    limiter.acquire(limit)
    began = time.monotonic()
    refused = limiter.acquire(limit, max_wait=50.0)
    assert time.monotonic() - began < 40.0, "it has not waited"
    assert (refused.allowed, refused.limited_by) == (False, "api")
    assert refused.retry_after > 50


@pytest.mark.parametrize("for_ever", [None, math.inf])
def test_a_blocking_call_may_wait_for_ever(limiter: Limiter, for_ever: float | None) -> None:
    limit = Limit("20/s", name="api")
    assert [limiter.acquire(limit, max_wait=for_ever).allowed for _ in range(3)] == [True] * 3
    with limiter.permit(limit, max_wait=for_ever) as decision:
        assert decision.allowed
    assert limiter.limited(limit, max_wait=for_ever)(lambda: "called")() == "called"


def test_a_blocking_call_that_waits_for_a_slot_far_ahead_gets_it(limiter: Limiter, store: redis.Redis) -> None:
    """Further than a second ahead no permit is taken but a slot kept: the call asks again when it is due."""
    limit = Limit("1 per 1.2 s", name="api")
    first = limiter.acquire(limit)
    second = limiter.acquire(limit, max_wait=50.0)
    assert second.allowed
    assert second._granted_at - first._granted_at >= 1_200_000
    assert not store.exists("ratelimit:v1:{api}::slots")


def test_buckets_of_different_demands_do_not_share(limiter: Limiter) -> None:
    demands = [
        LimitRequest(Limit("1/m", name=name), name, key) for name in ("a", "b", "a:b") for key in ("", "x", "b", "{a}")
    ]
    assert all(limiter._asker.ask([each]).allowed for each in demands)
    assert not any(limiter._asker.ask([each]).allowed for each in demands)
