"""``permit`` and ``limited``, plain and with asyncio: the code in them runs with a permit and gives leases back."""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
import redis

from celery_ratelimit import (
    AsyncLimiter,
    Concurrency,
    ConfigurationError,
    ImpossibleRequest,
    Limit,
    Limiter,
    StoreUnavailable,
    Throttled,
)
from celery_ratelimit.limiter.limit_request import LimitRequest
from celery_ratelimit.testing import EmbeddedServer, embedded_server
from tests.conftest import PATIENT
from tests.fleet_of import until
from tests.integration.limiter.either import KINDS, EitherLimiter, opened

QUOTAS = {
    "api": Limit("20/s", name="api"),
    "hourly": Limit("1/h", name="hourly"),
    "tenant": Limit("1/h", name="tenant", key="tenant:{tenant}", cost="amount", burst=10),
    "leaky": Limit("1/m", algorithm="leaky_bucket", capacity=1, name="leaky"),
    "gpu": Concurrency(2, name="gpu", lease=600),
}


def free(limiter: Any) -> int:
    remaining: int = limiter.peek("gpu").remaining
    return remaining


# -- permit ------------------------------------------------------------------------------------------------------------


def test_each_block_waits_for_its_permit(either: EitherLimiter) -> None:
    granted = []
    for _ in range(5):
        with either.block("api") as decision:
            granted.append(decision._granted_at)
            assert time.time() >= decision._granted_at / 1e6 - 0.001, "began before its permit was good"
    assert all(later - earlier >= 50_000 for earlier, later in pairwise(granted))


@pytest.mark.parametrize("decorated", [False, True])
def test_call_that_would_wait_too_long_is_refused_with_limit_key_and_time(
    either: EitherLimiter, decorated: bool
) -> None:
    by_tenant = Limit("1/h", name="by tenant", key="tenant:{tenant}")
    either.acquire(by_tenant, key="tenant:7")
    if decorated:
        call = either.limited(by_tenant, max_wait=1000)(lambda tenant: pytest.fail("ran without a permit"))
        with pytest.raises(Throttled) as caught:
            call(7)
    else:
        with pytest.raises(Throttled) as caught, either.block(["api", by_tenant], key="tenant:7", max_wait=1000):
            pytest.fail("ran without a permit")
    error = caught.value
    assert (error.limit, error.key, error.max_wait) == ("by tenant", "tenant:7", 1000)
    assert 3_400 < error.retry_after <= 3_600
    assert str(error).endswith("beyond max_wait=1000 s")


def test_block_is_refused_when_the_queue_of_a_leaky_bucket_is_full(either: EitherLimiter, limiter: Limiter) -> None:
    either.acquire("leaky")
    waiting = LimitRequest(QUOTAS["leaky"], "leaky")
    assert not limiter._asker.ask([waiting], id="waits", claim=1e6).allowed
    for max_wait in (None, 1e6):
        with pytest.raises(Throttled, match="'leaky'") as caught, either.block("leaky", max_wait=max_wait):
            pytest.fail("ran without a permit")
        assert caught.value.max_wait is None, "more time would not help"
    limiter._asker.forget([waiting], id="waits")


def test_impossible_cost_is_an_error_before_the_block(either: EitherLimiter) -> None:
    with pytest.raises(ImpossibleRequest):
        either.limiter.permit("api", cost=2)


def test_lease_is_held_until_the_block_ends_or_is_interrupted(either: EitherLimiter) -> None:
    with either.block("gpu"):
        assert free(either) == 1
        with either.block(["gpu", "api"]):
            assert free(either) == 0
            with pytest.raises(Throttled), either.block("gpu", max_wait=0):
                pytest.fail("ran without a lease")
        with pytest.raises(KeyboardInterrupt), either.block("gpu"):
            raise KeyboardInterrupt
        assert free(either) == 1
    assert free(either) == 2


def test_cancelled_block_gives_its_lease_back(server: EmbeddedServer, limiter: Limiter) -> None:
    async def main() -> None:
        inside = asyncio.Event()

        async def block() -> None:
            async with awaited.permit("gpu"):
                inside.set()
                await asyncio.Event().wait()

        async with AsyncLimiter.from_url(server.url + PATIENT, quotas=QUOTAS) as awaited:
            task = asyncio.create_task(block())
            await inside.wait()
            assert free(limiter) == 1
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert free(limiter) == 2

    asyncio.run(main())


def until_renewed(limiter: EitherLimiter, store: redis.Redis, name: str) -> None:
    def lease_end() -> float:
        limiter.ping()  # lets an event loop go on
        return max(end for _, end in store.zrange(f"ratelimit:v1:{{{name}}}::leases", 0, -1, withscores=True))

    before = lease_end()
    until(lambda: lease_end() > before, 10, "a renewal")


def test_lease_is_renewed_while_the_block_runs(
    either: EitherLimiter, store: redis.Redis, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("celery_ratelimit.limiter.leases.renewal_pause", lambda demands: 0.1)
    with either.block("gpu"):
        until_renewed(either, store, "gpu")
    assert free(either) == 2
    for _ in range(5):
        time.sleep(0.1)
        either.ping()
    assert "was lost" not in caplog.text, "it is not renewed after the block"


def test_lost_lease_is_logged(either: EitherLimiter, caplog: pytest.LogCaptureFixture) -> None:
    short = Concurrency(1, name="short", lease=0.3)
    with caplog.at_level(logging.WARNING, "celery_ratelimit"), either.block(short):
        either.reset(short)
        until(lambda: either.peek(short) and caplog.records, 10, "the warning")
    assert "under 'short' was lost while it" in caplog.text


@pytest.mark.parametrize("kind", KINDS)
def test_leases_of_blocks_are_renewed_and_given_back_after_a_restart_of_the_store(
    kind: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("celery_ratelimit.limiter.leases.renewal_pause", lambda demands: 0.1)
    caplog.set_level(logging.DEBUG, "celery_ratelimit")
    runs_on, ends = Concurrency(1, name="runs", lease=3600), Concurrency(1, name="ends", lease=3600)
    with embedded_server(persist=True) as own, opened(kind, lambda kind: kind.from_url(own.url + PATIENT)) as either:

        def has_failed_to_renew() -> bool:
            with pytest.raises(StoreUnavailable):
                either.ping()  # lets an event loop go on
            return "not renewed" in caplog.text

        with either.block(runs_on):
            with either.block(ends):
                own.kill()
            with pytest.raises(StoreUnavailable), either.block(ends):
                pytest.fail("ran without a lease")
            until(has_failed_to_renew, 10, "an attempt to renew")
            own.start()
            until(lambda: either.acquire(ends).allowed, 20, "the return of the lease")
            with redis.Redis.from_url(own.url, decode_responses=True) as store:
                until_renewed(either, store, "runs")
        assert either.acquire(runs_on).allowed


# -- limited -----------------------------------------------------------------------------------------------------------


def test_each_call_of_a_limited_function_takes_a_permit(either: EitherLimiter) -> None:
    def charge(order: int, *, amount: int = 1) -> int:
        """Charges."""
        return order * amount

    limited = either.limited("hourly", max_wait=0)(charge)
    with pytest.raises(TypeError, match="order"):
        limited()
    assert limited(7, amount=6) == 42, "the call with wrong arguments took nothing"
    with pytest.raises(Throttled, match="'hourly'"):
        limited(8)


def test_limited_function_keeps_its_name_docstring_and_signature() -> None:
    async def awaited(order: int, *, amount: int = 1) -> None:
        """Charges."""

    def charge(order: int, *, amount: int = 1) -> None:
        """Charges."""

    for function, kind in ((charge, Limiter), (awaited, AsyncLimiter)):
        limited: Any = kind.from_url("redis://nowhere", quotas=QUOTAS).limited("hourly")(function)  # type: ignore
        assert (limited.__name__, limited.__doc__) == (function.__name__, "Charges.")
        assert list(inspect.signature(limited).parameters) == ["order", "amount"]
        assert inspect.iscoroutinefunction(limited) == (function is awaited)


@pytest.mark.parametrize(
    ("key", "cost", "keys"),
    [
        (None, None, {"tenant:ann": 6, "tenant:none": 9}),  # what the limit itself says
        ("order:{order}", 2, {"order:7": 8, "order:8": 8}),
        (lambda order, tenant="none", amount=1: f"{tenant}/{order}", "order", {"ann/7": 3, "none/8": 2}),
        ("{tenant}", lambda order, tenant="none", amount=1: amount + 1, {"ann": 5, "none": 8}),
    ],
)
def test_key_and_cost_are_read_from_the_arguments(
    either: EitherLimiter, key: Any, cost: Any, keys: dict[str, int]
) -> None:
    @either.limited("tenant", key_template=key, cost=cost, max_wait=0)
    def charge(order: int, tenant: str = "none", amount: int = 1) -> None: ...

    charge(7, "ann", amount=4)
    charge(8)
    assert {name: either.peek("tenant", key=name, cost=1).remaining for name in keys} == keys


def test_method_can_be_limited(limiter: Limiter) -> None:
    class Account:
        tenant = "ann"

        @limiter.limited("tenant", key_template="{self.tenant}", cost=1, max_wait=0)
        def charge(self) -> str:
            return self.tenant

    assert Account().charge() == "ann"
    assert limiter.peek("tenant", key="ann", cost=1).remaining == 9


def test_lease_is_held_while_a_limited_function_runs(either: EitherLimiter, limiter: Limiter) -> None:
    work = either.limited(["gpu", "tenant"], key_template="{tenant}", cost=3)(lambda tenant: free(limiter))
    assert work("ann") == 1, "leases are not kept by key"
    assert free(limiter) == 2
    assert limiter.peek("tenant", key="ann", cost=1).remaining == 7


@pytest.mark.parametrize(
    ("limits", "options", "why"),
    [
        ("strpe", {}, "no quota named 'strpe'"),
        (Limit("1/s"), {}, r"function '.*charge': Limit\('1/s'\) has no name"),
        (
            "tenant",
            {"key_template": "{tenat}"},
            r"function '.*charge': key='{tenat}' of limit 'tenant' names the argument 'tenat'",
        ),
        ("tenant", {"key_template": "{tenant}", "cost": "price"}, "cost='price' .* which the function does not take"),
        ("api", {"cost": 2}, "cost"),
        ([], {}, "no limit was named"),
    ],
)
def test_invalid_decorator_is_an_error_at_once(
    either: EitherLimiter, limits: Any, options: dict[str, Any], why: str
) -> None:
    def charge(order: int, tenant: str = "", amount: int = 1) -> None: ...

    with pytest.raises(ConfigurationError, match=why):
        either.limited(limits, **options)(charge)


def test_function_of_the_wrong_kind_is_refused(limiter: Limiter) -> None:
    async def coroutine() -> None: ...

    def generator() -> Iterator[int]:
        yield 1

    def function() -> None: ...

    for each in (coroutine, generator):
        with pytest.raises(ConfigurationError, match="does not run when it is called"):
            limiter.limited("api")(each)
    for each in (function, generator):
        with pytest.raises(ConfigurationError, match="no coroutine function"):
            AsyncLimiter.from_url("redis://nowhere", quotas=QUOTAS).limited("api")(each)  # type: ignore
