"""Blocking calls on the real clock: they are served in order, at the rate, and not before their permits are good."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest
import redis

from celery_ratelimit import Limit, Limiter
from celery_ratelimit.limiter.limit_request import LimitRequest
from celery_ratelimit.testing import EmbeddedServer
from tests.conftest import PATIENT
from tests.integration.limiter.callers import Told, as_answered
from tests.integration.limiter.either import KINDS, EitherLimiter, opened


def test_blocking_calls_are_served_at_consecutive_slots(
    server: EmbeddedServer, store: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight threads take ten permits each: no slot is left out, and no call returns before its permit is good."""
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
    # By the store's clock: the next slot, or at once if no call waits. A step back of the clock (ADR 7) is waited for.
    gaps = [told.at - before.at for (before, _), (told, _) in pairwise(served)]
    assert min(gaps) >= 10_000
    for gap, (before, _), (told, _) in zip(gaps, served, served[1:], strict=False):
        assert gap <= max(10_000, told.asked - before.at) + 1_000
    assert min(woken - told.at / 1e6 for told, woken in served) >= -0.001, "returned before its permit was good"


@pytest.fixture(params=KINDS)
def either(request: pytest.FixtureRequest, server: EmbeddedServer, store: redis.Redis) -> Iterator[EitherLimiter]:
    with opened(request.param, lambda kind: kind.from_url(server.url + PATIENT)) as limiter:
        yield limiter


def test_blocking_call_that_would_wait_too_long_is_refused_and_keeps_no_slot(
    either: EitherLimiter, store: redis.Redis
) -> None:
    limit = Limit("1/h", name="api")
    either.acquire(limit)
    refused = either.acquire(limit, max_wait=3000.0)
    assert (refused.allowed, refused.limited_by) == (False, "api")
    assert refused.retry_after > 3000, "it has not waited"
    assert not store.exists("ratelimit:v1:{api}::slots")


@pytest.mark.parametrize("max_wait", [None, math.inf])
def test_blocking_call_without_a_maximum_waits(either: EitherLimiter, max_wait: float | None) -> None:
    limit = Limit("20/s", name="api")
    assert [either.acquire(limit, max_wait=max_wait).allowed for _ in range(3)] == [True] * 3
    with either.block(limit, max_wait=max_wait) as decision:
        assert decision.allowed
    assert either.limited(limit, max_wait=max_wait)(lambda: "called")() == "called"


def test_blocking_call_keeps_a_slot_more_than_a_second_ahead(limiter: Limiter, store: redis.Redis) -> None:
    """Further than a second ahead no permit is taken but a slot kept: the call asks again when it is due."""
    limit = Limit("1 per 1.2 s", name="api")
    first = limiter.acquire(limit)
    second = limiter.acquire(limit, max_wait=50.0)
    assert second.allowed
    assert second._granted_at - first._granted_at >= 1_200_000
    assert not store.exists("ratelimit:v1:{api}::slots")


def test_buckets_of_different_limits_and_keys_are_separate(limiter: Limiter) -> None:
    demands = [
        LimitRequest(Limit("1/m", name=name), name, key) for name in ("a", "b", "a:b") for key in ("", "x", "b", "{a}")
    ]
    assert all(limiter._asker.ask([each]).allowed for each in demands)
    assert not any(limiter._asker.ask([each]).allowed for each in demands)
