"""``memory://`` answers what a real server answers, for every algorithm, call by call, on stopped clocks."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from celery_ratelimit import Concurrency, Limit, Limiter
from celery_ratelimit.limiter.limit_request import LimitRequest
from celery_ratelimit.limiter.script_calls import LeasesToRelease
from celery_ratelimit.limits.any_limit import AnyLimit
from celery_ratelimit.limits.rate_limit import METHODS
from celery_ratelimit.store.memory import Clock as MemoryClock
from celery_ratelimit.testing import frozen_clock
from tests.asking import cancel_demands, reserve_demands, settle_demands
from tests.conftest import START, Clock

LIMITS: dict[str, AnyLimit] = {
    "token_bucket": Limit("7/10s", name="a", burst=3),
    "leaky_bucket": Limit("3/s", name="b", algorithm="leaky_bucket", capacity=4),
    "fixed_window": Limit("5/2s", name="c", algorithm="fixed_window"),
    "sliding_window": Limit("5/3s", name="d", algorithm="sliding_window"),
    "sliding_log": Limit("4/s", name="e", algorithm="sliding_log"),
    "stepped_bucket": Limit("6/3s", name="f", burst=6, refill="interval"),
    "warm_up": Limit("10/s", name="g", warmup=5.0),
    "concurrency": Concurrency(2, name="h", lease=3.0),
}


@pytest.fixture
def memory_clock() -> Iterator[MemoryClock]:
    with frozen_clock() as clock:
        yield clock


def test_every_algorithm_is_compared() -> None:
    assert set(LIMITS) == set(METHODS)
    assert {limit.method for limit in LIMITS.values()} == set(METHODS)


def a_call(chance: random.Random, limits: list[AnyLimit], number: int, now_us: int) -> Callable[[Limiter], Any]:
    """Something to ask both of, at random."""
    asked = tuple(LimitRequest(limit, limit.name or "") for limit in limits)
    rates = tuple(demand for demand in asked if isinstance(demand.limit, Limit))
    places = [demand for demand in asked if isinstance(demand.limit, Concurrency)]
    id, reserved = chance.choice(["", "a", "b", "c"]), f"reserved {number % 7}"
    horizon = chance.choice([0.0, 0.0, 0.5, -1e6])
    lasts = chance.choice([None, 3.1])
    changed = chance.choice(limits)
    rate = chance.choice(["2/s", "9/2s"]) if isinstance(changed, Limit) else Concurrency(chance.choice([1, 3]))
    calls: list[Callable[[Limiter], Any]] = [
        *[lambda limiter: limiter._asker.ask(asked, id=id, horizon=horizon, claim=100.0)] * 12,
        lambda limiter: limiter.set_rate(changed, rate, for_=lasts),
        lambda limiter: limiter.unset_rate(changed),
        lambda limiter: limiter.pause(changed, 0.7) if number % 4 == 0 else limiter.resume(changed),
        lambda limiter: limiter.config(changed),
        lambda limiter: limiter.peek(limits),
        lambda limiter: limiter._asker.forget(asked, id=id),
        lambda limiter: limiter.reset(limits) if number % 4 == 0 else None,
    ]
    if places:
        calls += [
            lambda limiter: limiter._asker.release([LeasesToRelease(id, places, START)]),
            lambda limiter: limiter._asker.renew([(demand, id) for demand in places]),
        ]
    if rates:
        calls += [
            lambda limiter: reserve_demands(limiter, rates, id=reserved, horizon=5.0),
            lambda limiter: cancel_demands(limiter, rates, id=reserved),
            lambda limiter: settle_demands(limiter, rates, [0] * len(rates), id=f"{number}", granted_at=now_us),
        ]
    return chance.choice(calls)


@pytest.mark.parametrize(
    "names", [*[[name] for name in LIMITS], list(LIMITS), ["token_bucket", "concurrency"]], ids="+".join
)
def test_memory_store_answers_like_redis(
    frozen: Limiter, clock: Clock, memory_clock: MemoryClock, names: list[str]
) -> None:
    memory = Limiter.from_url("memory://")
    chance = random.Random("+".join(names))
    allowed = set()
    assert round(memory_clock.now * 1e6) == START
    for number in range(200):
        us = chance.choice([0, 0, 1, 50_003, 333_341, 1_000_007, 4_000_037])
        clock.set(clock.us + us)
        memory_clock.advance(us / 1e6)
        call = a_call(chance, [LIMITS[name] for name in names], number, clock.us)
        ours, theirs = call(memory), call(frozen)
        assert ours == theirs, number
        allowed.add(getattr(ours, "allowed", None))
    assert allowed == {True, False, None}
    for key in frozen.client.keys("ratelimit:*:config"):  # what people store stays; the rest expires
        frozen.client.delete(key)
