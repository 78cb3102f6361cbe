"""``permit`` and ``limited``, plain and with asyncio: the code in them runs with a permit and gives leases back."""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
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
from tests.integration.limiter.callers import most_at_once, store_time
from tests.integration.limiter.either import KINDS, EitherLimiter, opened

QUOTAS = {
    "api": Limit("20/s", name="api"),
    "hourly": Limit("1/h", name="hourly"),
    "tenant": Limit("1/h", name="tenant", key="tenant:{tenant}", cost="amount", burst=10),
    "leaky": Limit("1/m", algorithm="leaky_bucket", capacity=1, name="leaky"),
    "gpu": Concurrency(2, name="gpu", lease=600),
}


@pytest.fixture
def plain(server: EmbeddedServer, store: redis.Redis) -> Iterator[Limiter]:
    with Limiter.from_url(server.url + PATIENT, quotas=QUOTAS) as limiter:
        yield limiter


@pytest.fixture(params=KINDS)
def limiter(request: pytest.FixtureRequest, server: EmbeddedServer, store: redis.Redis) -> Iterator[EitherLimiter]:
    with opened(request.param, lambda kind: kind.from_url(server.url + PATIENT, quotas=QUOTAS)) as limiter:
        yield limiter


def free(limiter: Any) -> int:
    remaining: int = limiter.peek("gpu").remaining
    return remaining


# -- permit ------------------------------------------------------------------------------------------------------------


def test_each_block_waits_for_its_permit(limiter: EitherLimiter) -> None:
    granted = []
    for _ in range(5):
        with limiter.block("api") as decision:
            granted.append(decision._granted_at)
    assert all(later - earlier >= 50_000 for earlier, later in pairwise(granted))


@pytest.mark.parametrize("decorated", [False, True])
def test_call_that_would_wait_too_long_is_refused_with_limit_key_and_time(
    limiter: EitherLimiter, decorated: bool
) -> None:
    by_tenant = Limit("1/h", name="by tenant", key="tenant:{tenant}")
    limiter.acquire(by_tenant, key="tenant:7")
    if decorated:
        call = limiter.limited(by_tenant, max_wait=1000)(lambda tenant: pytest.fail("ran without a permit"))
        with pytest.raises(Throttled) as caught:
            call(7)
    else:
        with pytest.raises(Throttled) as caught, limiter.block(["api", by_tenant], key="tenant:7", max_wait=1000):
            pytest.fail("ran without a permit")
    error = caught.value
    assert (error.limit, error.key, error.max_wait) == ("by tenant", "tenant:7", 1000)
    assert 3_400 < error.retry_after <= 3_600
    assert str(error).endswith("beyond max_wait=1000 s")


def test_block_is_refused_when_the_queue_of_a_leaky_bucket_is_full(limiter: EitherLimiter, plain: Limiter) -> None:
    limiter.acquire("leaky")
    waiting = LimitRequest(QUOTAS["leaky"], "leaky")
    assert not plain._asker.ask([waiting], id="waits", claim=1e6).allowed
    for max_wait in (None, 1e6):
        with pytest.raises(Throttled, match="'leaky'") as caught, limiter.block("leaky", max_wait=max_wait):
            pytest.fail("ran without a permit")
        assert caught.value.max_wait is None, "more time would not help"
    plain._asker.forget([waiting], id="waits")


def test_unknown_quota_and_impossible_cost_are_errors_before_the_block(limiter: EitherLimiter) -> None:
    with pytest.raises(ConfigurationError, match="no quota named 'strpe'"):
        limiter.limiter.permit("strpe")
    with pytest.raises(ImpossibleRequest):
        limiter.limiter.permit("api", cost=2)


def test_lease_is_held_until_the_block_ends_or_fails(limiter: EitherLimiter) -> None:
    with limiter.block("gpu"):
        assert free(limiter) == 1
        with limiter.block(["gpu", "api"]):
            assert free(limiter) == 0
            with pytest.raises(Throttled), limiter.block("gpu", max_wait=0):
                pytest.fail("ran without a lease")
        with pytest.raises(RuntimeError, match="broken"), limiter.block("gpu"):
            raise RuntimeError("broken")
        assert free(limiter) == 1
    assert free(limiter) == 2


def test_cancelled_block_gives_its_lease_back(server: EmbeddedServer, plain: Limiter) -> None:
    async def main() -> None:
        inside = asyncio.Event()

        async def block() -> None:
            async with limiter.permit("gpu"):
                inside.set()
                await asyncio.Event().wait()

        async with AsyncLimiter.from_url(server.url + PATIENT, quotas=QUOTAS) as limiter:
            task = asyncio.create_task(block())
            await inside.wait()
            assert free(plain) == 1
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert free(plain) == 2

    asyncio.run(main())


def test_lease_is_renewed_while_the_block_runs(
    limiter: EitherLimiter, store: redis.Redis, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("celery_ratelimit.limiter.leases.renewal_pause", lambda demands: 0.1)

    def lease_end() -> float:
        limiter.ping()  # lets an event loop go on
        return max(end for _, end in store.zrange("ratelimit:v1:{gpu}::leases", 0, -1, withscores=True))

    with limiter.block("gpu"):
        before = lease_end()
        until(lambda: lease_end() > before, 10, "a renewal")
    assert free(limiter) == 2
    for _ in range(5):
        time.sleep(0.1)
        limiter.ping()
    assert "was lost" not in caplog.text, "it is not renewed after the block"


def test_lost_lease_is_logged(limiter: EitherLimiter, caplog: pytest.LogCaptureFixture) -> None:
    short = Concurrency(1, name="short", lease=0.3)
    with caplog.at_level(logging.WARNING, "celery_ratelimit"), limiter.block(short):
        limiter.reset(short)
        until(lambda: limiter.peek(short) and caplog.records, 10, "the warning")
    assert "under 'short' was lost while it" in caplog.text


def test_no_more_blocks_run_at_once_than_there_are_leases(server: EmbeddedServer, plain: Limiter) -> None:
    spans: list[tuple[int, int]] = []

    def work(_: int) -> None:
        with plain.permit("gpu") as decision:
            spans.append((decision._granted_at, store_time(plain)))

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(work, range(60)))
    assert most_at_once(spans) == 2

    async def main() -> None:
        async def block() -> None:
            async with limiter.permit("gpu") as decision:
                seconds, fraction = await limiter.client.time()
                spans.append((decision._granted_at, int(seconds) * 1_000_000 + int(fraction)))

        async with AsyncLimiter.from_url(server.url + PATIENT, quotas=QUOTAS) as limiter:
            await asyncio.gather(*[block() for _ in range(60)])

    spans.clear()
    asyncio.run(main())
    assert most_at_once(spans) == 2


@pytest.mark.parametrize("kind", KINDS)
def test_lease_of_a_block_during_which_the_store_died_is_given_back_later(
    kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("celery_ratelimit.limiter.leases.renewal_pause", lambda demands: 0.2)
    long, short = Concurrency(1, name="long", lease=3600), Concurrency(1, name="short", lease=3600)
    with embedded_server(persist=True) as own, opened(kind, lambda kind: kind.from_url(own.url)) as limiter:
        with limiter.block(long):
            own.kill()
        with pytest.raises(StoreUnavailable), limiter.block(long):
            pytest.fail("ran without a lease")
        own.start()
        with limiter.block(short):
            until(lambda: limiter.acquire(long).allowed, 20, "the return of the lease")


# -- limited -----------------------------------------------------------------------------------------------------------


def test_each_call_of_a_limited_function_takes_a_permit(limiter: EitherLimiter) -> None:
    def charge(order: int, *, amount: int = 1) -> int:
        """Charges."""
        return order * amount

    limited = limiter.limited("hourly", max_wait=0)(charge)
    with pytest.raises(TypeError, match="order"):
        limited()
    assert limited(7, amount=6) == 42, "the call with wrong arguments took nothing"
    with pytest.raises(Throttled, match="'hourly'"):
        limited(8)


def test_limited_function_keeps_its_name_docstring_and_signature(plain: Limiter, server: EmbeddedServer) -> None:
    async def awaited(order: int, *, amount: int = 1) -> None:
        """Charges."""

    def charge(order: int, *, amount: int = 1) -> None:
        """Charges."""

    for function, limiter in ((charge, plain), (awaited, AsyncLimiter.from_url(server.url, quotas=QUOTAS))):
        limited: Any = limiter.limited("hourly")(function)  # type: ignore[attr-defined]
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
    limiter: EitherLimiter, key: Any, cost: Any, keys: dict[str, int]
) -> None:
    @limiter.limited("tenant", key_template=key, cost=cost, max_wait=0)
    def charge(order: int, tenant: str = "none", amount: int = 1) -> None: ...

    charge(7, "ann", amount=4)
    charge(8)
    assert {name: limiter.peek("tenant", key=name, cost=1).remaining for name in keys} == keys


def test_method_can_be_limited(plain: Limiter) -> None:
    class Account:
        tenant = "ann"

        @plain.limited("tenant", key_template="{self.tenant}", cost=1, max_wait=0)
        def charge(self) -> str:
            return self.tenant

    assert Account().charge() == "ann"
    assert plain.peek("tenant", key="ann", cost=1).remaining == 9


def test_lease_is_held_while_a_limited_function_runs(limiter: EitherLimiter, plain: Limiter) -> None:
    work = limiter.limited(["gpu", "tenant"], key_template="{tenant}", cost=3)(lambda tenant: free(plain))
    assert work("ann") == 1, "leases are not kept by key"
    assert free(plain) == 2
    assert plain.peek("tenant", key="ann", cost=1).remaining == 7


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
    limiter: EitherLimiter, limits: Any, options: dict[str, Any], why: str
) -> None:
    def charge(order: int, tenant: str = "", amount: int = 1) -> None: ...

    with pytest.raises(ConfigurationError, match=why):
        limiter.limited(limits, **options)(charge)


def test_function_of_the_wrong_kind_is_refused(plain: Limiter) -> None:
    async def coroutine() -> None: ...

    def generator() -> Iterator[int]:
        yield 1

    def function() -> None: ...

    for each in (coroutine, generator):
        with pytest.raises(ConfigurationError, match="does not run when it is called"):
            plain.limited("api")(each)
    for each in (function, generator):
        with pytest.raises(ConfigurationError, match="no coroutine function"):
            AsyncLimiter.from_url("redis://nowhere", quotas=QUOTAS).limited("api")(each)  # type: ignore
