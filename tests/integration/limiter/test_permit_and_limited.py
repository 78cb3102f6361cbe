"""``permit`` and ``limited``, plain and with asyncio: what runs has its permits, and gives its places back."""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import pytest
import redis

from celery_ratelimit import (
    AsyncLimiter,
    Concurrency,
    ConfigurationError,
    Decision,
    ImpossibleRequest,
    Limit,
    Limiter,
    StoreUnavailable,
    Throttled,
)
from celery_ratelimit.limiter.limit_request import LimitRequest
from celery_ratelimit.testing import EmbeddedServer, embedded_server
from tests.conftest import PATIENT

QUOTAS = {
    "api": Limit("20/s", name="api"),
    "hourly": Limit("1/h", name="hourly"),
    "tenant": Limit("1/h", name="tenant", key="tenant:{tenant}", cost="amount", burst=10),
    "leaky": Limit("1/m", algorithm="leaky_bucket", capacity=1, name="leaky"),
    "places": Concurrency(2, name="places", lease=600),
}


@pytest.fixture
def limiter(server: EmbeddedServer, store: redis.Redis) -> Limiter:
    return Limiter.from_url(server.url + PATIENT, quotas=QUOTAS)


@pytest.fixture
def run(server: EmbeddedServer, store: redis.Redis) -> Callable[..., None]:
    """Runs a coroutine function with a limiter, in a loop of its own."""

    def in_loop(test: Callable[[AsyncLimiter], Any]) -> None:
        async def main() -> None:
            async with AsyncLimiter.from_url(server.url + PATIENT, quotas=QUOTAS) as limiter:
                await test(limiter)
            assert asyncio.all_tasks() == {asyncio.current_task()}, "nothing is left behind"

        asyncio.run(main())

    return in_loop


def free(limiter: Limiter, name: str = "places") -> int:
    return limiter.peek(name).remaining


# -- with --------------------------------------------------------------------------------------------------------------


def test_a_block_runs_when_it_has_its_permit(limiter: Limiter) -> None:
    granted = []
    for _ in range(5):
        with limiter.permit("api") as decision:  # waits for as long as it takes
            granted.append(decision._granted_at)
    assert all(later - earlier >= 50_000 for earlier, later in pairwise(granted))


def test_a_block_that_would_wait_for_too_long_does_not_run(limiter: Limiter) -> None:
    limiter.acquire("hourly")
    began = time.monotonic()
    with pytest.raises(Throttled) as caught, limiter.permit("hourly", max_wait=1000.0):
        pytest.fail("ran without a permit")
    assert time.monotonic() - began < 100, "it has not waited"
    error = caught.value
    assert (error.limit, error.key, error.max_wait) == ("hourly", "", 1000.0)
    assert 3_500 < error.retry_after <= 3_600
    assert str(error).endswith("beyond max_wait=1000 s")


def test_a_refusal_names_the_key_and_how_long_the_call_would_have_waited(limiter: Limiter) -> None:
    tenant = Limit("1/h", name="by tenant", key="tenant:{tenant}")
    limiter.acquire(tenant, key="tenant:7")
    with pytest.raises(Throttled) as caught, limiter.permit(["api", tenant], key="tenant:7", max_wait=2):
        pytest.fail("ran without a permit")
    assert (caught.value.limit, caught.value.key, caught.value.max_wait) == ("by tenant", "tenant:7", 2)

    @limiter.limited(tenant, max_wait=3)
    def call(tenant: int) -> None:
        pytest.fail("ran without a permit")

    with pytest.raises(Throttled) as caught:
        call(7)
    assert (caught.value.limit, caught.value.key, caught.value.max_wait) == ("by tenant", "tenant:7", 3)


def test_async_a_refusal_names_the_key_and_how_long_the_call_would_have_waited(run: Callable[..., None]) -> None:
    tenant = Limit("1/h", name="by tenant", key="tenant:{tenant}")

    async def test(limiter: AsyncLimiter) -> None:
        await limiter.acquire(tenant, key="tenant:7")
        with pytest.raises(Throttled) as caught:
            async with limiter.permit(tenant, key="tenant:7", max_wait=2):
                pytest.fail("ran without a permit")
        assert (caught.value.limit, caught.value.key, caught.value.max_wait) == ("by tenant", "tenant:7", 2)

    run(test)


def test_a_block_is_refused_where_there_is_no_room_to_wait(limiter: Limiter) -> None:
    limiter.acquire("leaky")
    waiting = LimitRequest(QUOTAS["leaky"], "leaky")
    assert not limiter._asker.ask([waiting], id="who waits", claim=1e6).allowed
    for max_wait in (None, 1e6):
        with pytest.raises(Throttled, match="'leaky'") as caught, limiter.permit("leaky", max_wait=max_wait):
            pytest.fail("ran without a permit")
        assert caught.value.max_wait is None, "it is not the time that is lacking"
    limiter._asker.forget([waiting], id="who waits")


def test_what_no_call_can_be_asked_by_is_said_at_once(limiter: Limiter) -> None:
    with pytest.raises(ConfigurationError, match="no quota named 'strpe'"):
        limiter.permit("strpe")
    with pytest.raises(ImpossibleRequest):
        limiter.permit("api", cost=2)


def test_places_are_held_for_as_long_as_the_block_runs(limiter: Limiter) -> None:
    with limiter.permit("places"):
        assert free(limiter) == 1
        with limiter.permit(["places", "api"]):
            assert free(limiter) == 0
            with pytest.raises(Throttled), limiter.permit("places", max_wait=0):
                pytest.fail("ran without a place")
        assert free(limiter) == 1
    assert free(limiter) == 2


def test_places_come_back_from_a_block_that_fails(limiter: Limiter) -> None:
    with pytest.raises(RuntimeError, match="broken"), limiter.permit("places"):
        raise RuntimeError("broken")
    assert free(limiter) == 2


def test_a_place_outlasts_its_lease_while_the_block_runs(limiter: Limiter) -> None:
    short = Concurrency(1, name="short", lease=1.0)
    began = time.monotonic()
    with limiter.permit(short):
        while time.monotonic() < began + 2.0:
            assert not limiter.acquire(short).allowed
    assert limiter.acquire(short).allowed


def test_at_most_so_many_blocks_run_at_once(limiter: Limiter) -> None:
    """Eight threads, two places: intervals of the store's clock never overlap three deep, and two do."""
    spans: list[tuple[int, int]] = []

    def work(_: int) -> None:
        with limiter.permit("places") as decision:
            seconds, fraction = limiter.client.time()
            spans.append((decision._granted_at, int(seconds) * 1_000_000 + int(fraction)))

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(work, range(100)))
    assert most_at_once(spans) == 2


def most_at_once(spans: list[tuple[int, int]]) -> int:
    events = sorted([(end, -1) for _, end in spans] + [(start, 1) for start, _ in spans])
    now = most = 0
    for _, step in events:
        now += step
        most = max(most, now)
    return most


# -- async with --------------------------------------------------------------------------------------------------------


def test_async_a_block_runs_when_it_has_its_permit(run: Callable[..., None]) -> None:
    async def test(limiter: AsyncLimiter) -> None:
        async def block() -> int:
            async with limiter.permit("api") as decision:
                return decision._granted_at

        granted = sorted(await asyncio.gather(*[block() for _ in range(5)]))
        assert all(later - earlier >= 50_000 for earlier, later in pairwise(granted))
        await limiter.acquire("hourly")
        with pytest.raises(Throttled, match="'hourly'"):
            async with limiter.permit("hourly", max_wait=1.0):
                pytest.fail("ran without a permit")
        with pytest.raises(ConfigurationError, match="no quota named 'strpe'"):
            limiter.permit("strpe")

    run(test)


def test_async_places_are_held_for_as_long_as_the_block_runs(run: Callable[..., None], limiter: Limiter) -> None:
    async def test(asynchronous: AsyncLimiter) -> None:
        async with asynchronous.permit("places"):
            async with asynchronous.permit("places"):
                assert free(limiter) == 0
            assert free(limiter) == 1
        with pytest.raises(RuntimeError, match="broken"):
            async with asynchronous.permit("places"):
                raise RuntimeError("broken")
        assert free(limiter) == 2

    run(test)


def test_async_places_come_back_from_a_block_that_is_cancelled(run: Callable[..., None], limiter: Limiter) -> None:
    async def test(asynchronous: AsyncLimiter) -> None:
        inside = asyncio.Event()

        async def block() -> None:
            async with asynchronous.permit("places"):
                inside.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(block())
        await inside.wait()
        assert free(limiter) == 1
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert free(limiter) == 2

    run(test)


def test_async_a_place_outlasts_its_lease_while_the_block_runs(run: Callable[..., None]) -> None:
    short = Concurrency(1, name="short", lease=1.0)

    async def test(limiter: AsyncLimiter) -> None:
        began = time.monotonic()
        async with limiter.permit(short):
            while time.monotonic() < began + 2.0:
                assert not (await limiter.acquire(short)).allowed
        assert (await limiter.acquire(short)).allowed

    run(test)


def test_async_a_lost_lease_is_said(run: Callable[..., None], caplog: pytest.LogCaptureFixture) -> None:
    short = Concurrency(1, name="short", lease=0.3)

    async def test(limiter: AsyncLimiter) -> None:
        async with limiter.permit(short):
            await limiter.reset(short)
            while not caplog.records:
                await asyncio.sleep(0.01)

    with caplog.at_level(logging.WARNING, "celery_ratelimit"):
        run(test)
    assert "under 'short' was lost while it is in use" in caplog.text


def test_async_at_most_so_many_blocks_run_at_once(run: Callable[..., None], limiter: Limiter) -> None:
    async def test(asynchronous: AsyncLimiter) -> None:
        spans: list[tuple[int, int]] = []

        async def block() -> None:
            async with asynchronous.permit("places") as decision:
                seconds, fraction = await asynchronous.client.time()
                spans.append((decision._granted_at, int(seconds) * 1_000_000 + int(fraction)))

        await asyncio.gather(*[block() for _ in range(60)])
        assert len(spans) == 60
        assert most_at_once(spans) == 2

    run(test)


# -- Stores that do not answer -----------------------------------------------------------------------------------------


@pytest.fixture
def own_server() -> Iterator[EmbeddedServer]:
    """A store that this test may kill."""
    with embedded_server(persist=True) as running:
        yield running


def test_a_block_whose_store_dies_ends_as_it_would_and_its_place_comes_back(own_server: EmbeddedServer) -> None:
    limiter = Limiter.from_url(own_server.url)
    short = Concurrency(1, name="short", lease=1.5)
    with limiter.permit(short):
        own_server.kill()
    with pytest.raises(StoreUnavailable), limiter.permit(short):
        pytest.fail("ran without a place")
    own_server.start()
    with limiter.permit(short, max_wait=10):
        pass


def test_async_a_block_whose_store_dies_ends_as_it_would_and_its_place_comes_back(own_server: EmbeddedServer) -> None:
    long = Concurrency(1, name="long", lease=3.0)

    async def main() -> None:
        async with AsyncLimiter.from_url(own_server.url) as limiter:
            async with limiter.permit(long) as decision:
                own_server.kill()
            with pytest.raises(StoreUnavailable):
                async with limiter.permit(long):
                    pytest.fail("ran without a place")
            own_server.start()
            while not (again := await limiter.acquire(long)).allowed:
                await asyncio.sleep(0.01)
            assert again._granted_at < decision._granted_at + 2_500_000, "given back: a lease lasts for 3 s"

    asyncio.run(main())


# -- The decorator -----------------------------------------------------------------------------------------------------


def test_each_call_of_a_function_takes_a_permit(limiter: Limiter) -> None:
    @limiter.limited("hourly", max_wait=0)
    def charge(order: int, *, amount: int = 1) -> int:
        """Charges."""
        return order * amount

    assert charge(7, amount=6) == 42
    with pytest.raises(Throttled, match="'hourly'"):
        charge(8)
    assert charge.__name__ == "charge"
    assert charge.__doc__ == "Charges."
    assert list(inspect.signature(charge).parameters) == ["order", "amount"]


@pytest.mark.parametrize(
    ("key", "cost", "keys"),
    [
        (None, None, {"tenant:ann": 6, "tenant:none": 9}),  # what the limit itself says
        ("order:{order}", 2, {"order:7": 8, "order:8": 8}),
        (lambda order, tenant="none", amount=1: f"{tenant}/{order}", "order", {"ann/7": 3, "none/8": 2}),
        ("{tenant}", lambda order, tenant="none", amount=1: amount + 1, {"ann": 5, "none": 8}),
    ],
)
def test_keys_and_costs_are_read_from_the_arguments(
    limiter: Limiter, key: Any, cost: Any, keys: dict[str, int]
) -> None:
    @limiter.limited("tenant", key_template=key, cost=cost, max_wait=0)
    def charge(order: int, tenant: str = "none", amount: int = 1) -> None: ...

    charge(7, "ann", amount=4)
    charge(8)
    assert {name: limiter.peek("tenant", key=name, cost=1).remaining for name in keys} == keys


def test_a_method_can_be_limited(limiter: Limiter) -> None:
    class Account:
        tenant = "ann"

        @limiter.limited("tenant", key_template="{self.tenant}", cost=1, max_wait=0)
        def charge(self) -> str:
            return self.tenant

    assert Account().charge() == "ann"
    assert limiter.peek("tenant", key="ann", cost=1).remaining == 9


def test_a_place_is_held_for_as_long_as_the_function_runs(limiter: Limiter) -> None:
    @limiter.limited(["places", "tenant"], key_template="{tenant}", cost=3)
    def work(tenant: str) -> Decision:
        return limiter.peek("places")

    assert work("ann").remaining == 1, "places are not kept by key: there is one bucket of them"
    assert limiter.peek("places").remaining == 2
    assert limiter.peek("tenant", key="ann", cost=1).remaining == 7


def test_calls_with_wrong_arguments_take_nothing(limiter: Limiter) -> None:
    @limiter.limited("hourly")
    def charge(order: int) -> None: ...

    with pytest.raises(TypeError, match="order"):
        charge()  # type: ignore[call-arg]
    assert limiter.acquire("hourly").allowed


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
def test_a_decorator_that_cannot_be_is_an_error_at_once(
    limiter: Limiter, limits: Any, options: dict[str, Any], why: str
) -> None:
    def charge(order: int, tenant: str = "", amount: int = 1) -> None: ...

    async def charge_awaited(order: int, tenant: str = "", amount: int = 1) -> None: ...

    charge_awaited.__qualname__ = charge.__qualname__
    with pytest.raises(ConfigurationError, match=why):
        limiter.limited(limits, **options)(charge)
    with pytest.raises(ConfigurationError, match=why):
        AsyncLimiter.from_url("redis://nowhere", quotas=QUOTAS).limited(limits, **options)(charge_awaited)


def test_a_function_that_runs_later_is_refused(limiter: Limiter) -> None:
    async def coroutine() -> None: ...

    def generator() -> Iterator[int]:
        yield 1

    def plain() -> None: ...

    for function in (coroutine, generator):
        with pytest.raises(ConfigurationError, match="does not run when it is called"):
            limiter.limited("api")(function)
    for function in (plain, generator):
        with pytest.raises(ConfigurationError, match="no coroutine function"):
            AsyncLimiter.from_url("redis://nowhere", quotas=QUOTAS).limited("api")(function)  # type: ignore


def test_async_each_call_of_a_coroutine_function_takes_a_permit(run: Callable[..., None], limiter: Limiter) -> None:
    async def test(asynchronous: AsyncLimiter) -> None:
        @asynchronous.limited(["tenant", "places"], key_template="{tenant}", max_wait=0)
        async def charge(tenant: str, amount: int) -> int:
            return limiter.peek("places").remaining

        assert await charge("ann", amount=8) == 1
        assert limiter.peek("places").remaining == 2
        with pytest.raises(Throttled, match="'tenant'"):
            await charge("ann", 8)
        assert await charge("bob", 8) == 1
        with pytest.raises(ImpossibleRequest):
            await charge("eve", 11)
        assert inspect.iscoroutinefunction(charge)

    run(test)
