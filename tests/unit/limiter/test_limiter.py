"""Invalid requests and blocking calls of a limiter; no store is called."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import redis

from celery_ratelimit import (
    AsyncLimiter,
    ConfigurationError,
    Decision,
    ImpossibleRequest,
    Limit,
    Limiter,
    StoreUnavailable,
)
from celery_ratelimit.limiter.limit_request import LimitRequest
from celery_ratelimit.limiter.operation import Operation, UninterruptedAcquire

QUOTAS = {
    "stripe": Limit("100/s", burst=10, name="stripe"),
    "tenant": Limit("1/s", name="tenant", key="tenant:{tenant_id}"),
    "tokens": Limit("1/s", burst=10, name="tokens", cost="amount"),
}


class NoStore(redis.Redis):
    """Fails the test that asks it."""

    def execute_command(self, *args: Any, **options: Any) -> Any:
        raise AssertionError(f"asked the store: {args}")


@pytest.fixture
def limiter() -> Limiter:
    return Limiter(NoStore(port=1), quotas=QUOTAS)


@pytest.mark.parametrize("operation", ["acquire", "peek", "reset"])
@pytest.mark.parametrize(
    ("limits", "why"),
    [
        ("strpe", r"no quota named 'strpe' \(quotas: stripe, tenant, tokens\)"),
        (["stripe", "strpe"], "no quota named 'strpe'"),
        (Limit("100/s"), r"Limit\('100/s'\) has no name, so it has no bucket.*name="),
        ("tenant", "limit 'tenant' is kept by key: pass key="),
        ([], "no limit was named"),
    ],
)
def test_request_without_a_bucket_is_an_error(limiter: Limiter, operation: str, limits: Any, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        getattr(limiter, operation)(limits)


@pytest.mark.parametrize("operation", ["acquire", "peek"])
@pytest.mark.parametrize(
    ("name", "cost", "error", "text"),
    [
        *[
            ("stripe", cost, ConfigurationError, "limit 'stripe': cost=")
            for cost in (0, -1, 1.5, "1", math.nan, math.inf)
        ],
        ("stripe", 11, ImpossibleRequest, "'stripe' can never grant 11"),  # law 8
        ("tokens", None, ConfigurationError, "'tokens' takes its cost from a task's arguments: pass cost="),
    ],
)
def test_invalid_cost_is_an_error(
    limiter: Limiter, operation: str, name: str, cost: Any, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        getattr(limiter, operation)(name, cost=cost)


class Scripted(Limiter):
    """Answers from a list; writes down what it was asked."""

    def __init__(self, *answers: Decision) -> None:
        super().__init__(NoStore(port=1), quotas=QUOTAS)
        self.answers = list(answers)
        self.asked: list[tuple[str, float, float]] = []
        self.forgotten: list[str] = []
        self.is_lost = False
        asker: Any = self._asker
        asker.link._pool = None  # no call is prepared
        asker.core.ask_for_turn, asker.core.forget = self._say, self._forgets

    def _say(self, asked: UninterruptedAcquire) -> Operation[Decision]:
        yield from ()
        self.asked.append((asked.id, asked.horizon, asked.claim))
        return self.answers.pop(0)

    def _forgets(self, demands: Sequence[LimitRequest], *, id: str) -> Operation[None]:
        yield from ()
        self.forgotten.append(id)
        if self.is_lost:
            raise StoreUnavailable("gone")


def answer(allowed: bool, retry_after: float) -> Decision:
    return Decision(allowed, 1, 0, retry_after, retry_after, None if allowed else "stripe")


def test_acquire_without_max_wait_calls_once() -> None:
    limiter = Scripted(answer(False, 3.0))
    assert limiter.acquire("stripe") == answer(False, 3.0)
    assert limiter.asked == [("", 0.0, 0.0)]


def test_blocking_acquire_has_an_id_of_its_own_and_looks_ahead_one_second() -> None:
    limiter = Scripted(answer(False, 0.0), answer(False, 0.0), answer(True, 0.0), answer(True, 0.0))
    assert limiter.acquire("stripe", max_wait=60).allowed
    ids, horizons, claims = zip(*limiter.asked, strict=True)
    assert len(set(ids)) == 1
    assert ids[0]
    assert horizons == (1.0, 1.0, 1.0)
    assert 59 < claims[2] <= claims[1] <= claims[0] <= 60
    assert not limiter.forgotten
    assert limiter.acquire("stripe", max_wait=0.5).allowed
    other, horizon, _ = limiter.asked[3]
    assert other != ids[0]
    assert horizon == pytest.approx(0.5, abs=0.1), "never ahead of what the caller would wait"


BEYOND = answer(False, 61.0)
FULL = replace(answer(False, 0.5), queue_full=True)


@pytest.mark.parametrize("is_lost", [False, True])
@pytest.mark.parametrize(("before", "refused"), [(0, BEYOND), (0, FULL), (1, BEYOND)])
def test_refused_blocking_acquire_drops_the_slot_that_it_has(before: int, refused: Decision, is_lost: bool) -> None:
    limiter = Scripted(*[answer(False, 0.0)] * before, refused)
    limiter.is_lost = is_lost
    assert limiter.acquire("stripe", max_wait=60) == refused
    assert limiter.forgotten == [limiter.asked[0][0]] * before


def test_blocking_acquire_sleeps_until_its_permit_is_valid() -> None:
    decision = Scripted(replace(answer(True, 0.02), reset_after=0.05)).acquire("stripe", max_wait=60)
    assert (decision.allowed, decision.retry_after) == (True, 0.0)
    assert decision.reset_after == pytest.approx(0.03)


def test_resolved_quota_is_cached_until_it_changes() -> None:
    limiter = Limiter(NoStore(port=1), quotas={"api": "1000/s", "tenant": {"rate": "5/s", "key": "{tenant_id}"}})
    reader = limiter._reader
    assert reader.quota("api") is reader.quota("api")
    for options in ({}, {"key": "7"}, {"args": {"tenant_id": 7}}):
        name = "tenant" if options else "api"
        one, two = [reader.demands(name, options.get("key"), None, options.get("args")) for _ in range(2)]
        assert one[0] is two[0]
    before = reader.quota("api")
    limiter.quotas["api"] = Limit("5/s")
    assert (before.rate, reader.quota("api").rate) == ("1000/s", "5/s")  # type: ignore[attr-defined]
    assert reader.quota("api").name == "api"


def test_async_limiter_in_memory() -> None:
    async def acquire() -> bool:
        async with AsyncLimiter.from_url("memory://async-limiter") as limiter:
            return (await limiter.acquire(Limit("1/s", name="api"))).allowed

    assert asyncio.run(acquire())
