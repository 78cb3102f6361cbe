"""``set_testing`` and ``throttle_all`` call no store."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from celery_ratelimit import (
    AsyncLimiter,
    Concurrency,
    ConfigurationError,
    Limit,
    Limiter,
    StoreUnavailable,
    Throttled,
)
from celery_ratelimit.limiter.leases import LeaseKeeper
from celery_ratelimit.limiter.limit_request import LimitRequest
from celery_ratelimit.limiter.sync_store import StoreRunner
from celery_ratelimit.testing import set_testing, throttle_all

RATE = Limit("1/h", name="rate", burst=5)
WINDOW = Limit("3/h", name="window", algorithm="sliding_log")
PLACES = Concurrency(1, name="places")


@pytest.fixture(autouse=True)
def off_again() -> Iterator[None]:
    yield
    set_testing(False)


@pytest.fixture
def limiter() -> Limiter:
    """Nothing listens on port 1."""
    return Limiter.from_url("redis://127.0.0.1:1/0")


def test_set_testing_allows_everything_and_takes_nothing(limiter: Limiter) -> None:
    with set_testing():
        for _ in range(10):
            decision = limiter.acquire([RATE, WINDOW, PLACES], max_wait=9)
            assert decision.allowed
            assert (decision.retry_after, decision.limited_by, decision._granted_at) == (0.0, None, 0)
            assert [state.remaining for state in decision.states] == [5, 3, 1]
        assert limiter.peek(RATE).allowed
        assert limiter.acquire_up_to([RATE, PLACES], 7).permits == min(7, RATE.size, PLACES.size)
        limiter.charge(RATE, 100)
        said = SimpleNamespace(status_code=429, headers={"Retry-After": "5", "X-RateLimit-Remaining": "0"})
        assert limiter.report(RATE, said) == 0.0
        assert limiter.reserve(RATE, id="one", horizon=0).allowed
        with limiter.permit(PLACES) as held:
            assert held.allowed
        limiter.reset(RATE)
        limiter.ping()
        with pytest.raises(ConfigurationError, match="no quota named 'strpe'"):
            limiter.acquire("strpe")


def test_set_testing_has_nothing_to_give_back(limiter: Limiter) -> None:
    with set_testing():
        decision = limiter.acquire([RATE, PLACES])
        assert limiter.cancel(RATE, id="one") is False
    # A call that the switch allowed has nothing to give back afterwards, either.
    assert limiter.settle(decision, 3, limit="rate") is False
    assert limiter.release(decision) is False
    assert limiter.renew(decision) is True


def test_throttle_all_refuses_everything(limiter: Limiter) -> None:
    with throttle_all():
        for call in (limiter.acquire, limiter.peek):
            refused = call([RATE, PLACES])
            assert not refused.allowed
            assert not refused.queue_full
            assert (refused.remaining, refused.retry_after, refused.reset_after) == (0, 60.0, 60.0)
            assert refused.limited_by == "rate"
        assert not limiter.reserve(RATE, id="one", horizon=1e6).allowed
        assert (limiter.acquire_up_to(RATE, 7).allowed, limiter.acquire_up_to(RATE, 7).permits) == (False, 0)


def test_throttle_all_refuses_waiting_calls_at_once(limiter: Limiter) -> None:
    began = time.monotonic()
    with throttle_all(retry_after=60.5):
        assert limiter.acquire(RATE, max_wait=100).retry_after == 60.5
        with pytest.raises(Throttled, match=r"'rate'.*60\.500 s"), limiter.permit(RATE):
            pass
    assert time.monotonic() - began < 30


def test_switch_without_a_block_stays_on(limiter: Limiter) -> None:
    throttle_all(retry_after=5)
    assert limiter.acquire(RATE).retry_after == 5.0
    set_testing(True)
    assert limiter.acquire(RATE).allowed
    set_testing(False)
    with pytest.raises(StoreUnavailable):
        limiter.acquire(RATE)


def test_blocks_may_be_nested(limiter: Limiter) -> None:
    with set_testing():
        with throttle_all():
            assert not limiter.acquire(RATE).allowed
            with set_testing():
                assert limiter.acquire(RATE).allowed
            assert not limiter.acquire(RATE).allowed
        with pytest.raises(ZeroDivisionError), throttle_all():
            _ = 1 / 0
        assert limiter.acquire(RATE).allowed
    assert not StoreRunner.is_fake


@pytest.mark.parametrize("seconds", [0, -1, float("nan")])
def test_throttle_all_needs_a_positive_time(seconds: float) -> None:
    with pytest.raises(ConfigurationError, match="more than 0 seconds"):
        throttle_all(retry_after=seconds)


def test_call_for_a_slot_alone_gets_no_permit(limiter: Limiter) -> None:
    """It asks so while no pool process is free: as the script does, the answer is that a permit is there now."""
    for switch, retry_after in ((set_testing, 0.0), (lambda: throttle_all(7), 7.0)):
        with switch():
            slot = limiter._asker.ask([LimitRequest(RATE, "rate")], id="task", horizon=-1e6, claim=1e9)
            assert (slot.allowed, slot.retry_after) == (False, retry_after)


def test_set_testing_holds_no_lease(limiter: Limiter) -> None:
    leases = LeaseKeeper(limiter._asker)
    demand = LimitRequest(PLACES, "places")
    with set_testing():
        decision = limiter._asker.ask([demand], id="task")
        leases.begin("task", decision._demands, decision._granted_at)
    assert leases.here(demand) == 0
    leases.end("task")


def test_switches_of_the_async_limiter() -> None:
    async def main() -> list[Any]:
        async with AsyncLimiter.from_url("redis://127.0.0.1:1/0") as limiter:
            with set_testing():
                decision = await limiter.acquire([RATE, PLACES], max_wait=9)
                async with limiter.permit(PLACES):
                    await limiter.reset(RATE)
                    await limiter.ping()
            given_back = [await limiter.settle(decision, 3, limit="rate"), await limiter.release(decision)]
            with throttle_all():
                refused = await limiter.acquire(RATE, max_wait=1000)
                with pytest.raises(Throttled):
                    async with limiter.permit(RATE):
                        pass
        return [decision.allowed, refused.allowed, refused.retry_after, *given_back]

    assert asyncio.run(main()) == [True, False, 60.0, False, False]
