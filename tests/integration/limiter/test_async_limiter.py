"""``AsyncLimiter``: decisions like ``Limiter``'s, a thousand callers on ten connections, and cancelled callers."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any

import anyio
import pytest
import redis
import redis.asyncio
from redis.asyncio.connection import Connection

from benchmarks.servers import Cluster, Sentinels
from celery_ratelimit import AsyncLimiter, Concurrency, Decision, Limit, Limiter
from celery_ratelimit.limiter.limit_request import LimitRequest
from celery_ratelimit.testing import EmbeddedServer, embedded_server
from tests.asking import driven
from tests.conftest import PATIENT, START, Clock
from tests.integration.limiter.either import EitherLimiter, opened
from tests.lua.frozen import FROZEN_STORE, demand
from tests.lua.windows import Start, check_every_window

API = Limit("10/s", name="api")
PLACES = Concurrency(2, name="places", lease=60)


@pytest.fixture
def run(server: EmbeddedServer, store: redis.Redis) -> Callable[[Callable[[AsyncLimiter], Awaitable[None]]], None]:
    """Runs a test's coroutine in a loop of its own, with a limiter on the real clock."""

    def in_loop(test: Callable[[AsyncLimiter], Awaitable[None]]) -> None:
        async def main() -> None:
            async with AsyncLimiter.from_url(server.url + PATIENT, timeout=100, quotas={"api": API}) as limiter:
                await test(limiter)
                while limiter._asker._at_work:  # counts are sent each second, whether a test has just ended or not
                    await asyncio.wait(limiter._asker._at_work)
                assert in_use(limiter) == 0, "every connection is given back"
            assert asyncio.all_tasks() == {asyncio.current_task()}, "nothing is left behind"

        asyncio.run(main())

    return in_loop


Run = Callable[[Callable[[AsyncLimiter], Awaitable[None]]], None]


def in_use(limiter: AsyncLimiter) -> int:
    """How many connections are in use: of the pool, and the link's own."""
    link = limiter._asker.link
    return len(limiter.client.connection_pool._in_use_connections) + (link._own is not None and not link._own_is_free)


# -- The same decisions ------------------------------------------------------------------------------------------------

EACH = [
    Limit("10/s", name="bucket"),
    Limit("10/s", burst=4, debt=3, name="debt", cost="estimate"),
    Limit("10/s", burst=4, refill="interval", name="steps"),
    Limit("10/s", warmup=2.0, name="warm"),
    Limit("10/s", algorithm="leaky_bucket", capacity=2, name="leaky"),
    Limit("10/s", algorithm="fixed_window", name="fixed"),
    Limit("10/s", algorithm="fixed_window", align="first", name="first"),
    Limit("10/s", algorithm="sliding_window", name="sliding"),
    Limit("10/s", algorithm="sliding_log", name="log"),
    PLACES,
]

FROZEN = {"now": FROZEN_STORE}

#: What a caller can do, as (method, arguments). ``None`` stands for a step of the clock.
Step = tuple[str, dict[str, Any]] | None


def story(limits: Any, *, reservable: bool) -> Iterator[Step]:
    """Calls of every method: granted, refused, with slots, and given back."""
    cost: dict[str, Any] = {"cost": 1}
    asked = [LimitRequest(each, each.name) for each in (limits if isinstance(limits, list) else [limits])]
    for id in "abcdefgh":
        yield "peek", {"limits": limits, **cost}
        yield "ask", {"demands": asked, "id": id, "horizon": 0.05 * (id > "d"), "claim": 10.0 * (id > "b")}
    yield "forget", {"demands": asked, "id": "e"}
    yield None
    for _ in range(3):
        yield "acquire", {"limits": limits, **cost}
        yield "settle", {"actual_cost": 3}
        yield "settle", {"actual_cost": 3}
    yield "renew", {}
    yield "release", {}
    yield "release", {}
    yield "renew", {}
    if reservable:
        for id in "xyz":
            yield "reserve", {"limits": limits, "id": id, "horizon": 2.0, **cost}
        for id in ("y", "y", "x", "unknown"):
            yield "cancel", {"limits": limits, "id": id, **cost}
            yield "peek", {"limits": limits, **cost}
    yield None
    yield "acquire", {"limits": limits, **cost}
    yield "acquire_up_to", {"limits": limits, "permits": 3}
    yield "acquire_up_to", {"limits": limits, "permits": 99}
    if reservable:
        yield "charge", {"limits": limits, "permits": 7}
        yield "peek", {"limits": limits, **cost}
    yield "reset", {"limits": limits}
    yield "peek", {"limits": limits, **cost}


@pytest.mark.parametrize("limits", [*EACH, EACH], ids=[*[each.name for each in EACH], "together"])
def test_async_limiter_decides_like_the_plain_one(
    server: EmbeddedServer, store: redis.Redis, clock: Clock, limits: Any
) -> None:
    replies = []
    for kind, client in ((Limiter, redis.Redis), (AsyncLimiter, redis.asyncio.Redis)):
        store.flushall()
        with opened(
            kind, lambda kind, client=client: kind(client.from_url(server.url), replace_includes=FROZEN)
        ) as made:
            replies.append(play(limits, clock, made))
    assert replies[0] == replies[1]
    decisions = [each for each in replies[0] if isinstance(each, Decision)]
    assert {each.allowed for each in decisions} == {True, False}, "the story has both"


def play(limits: Any, clock: Clock, limiter: EitherLimiter) -> list[Any]:
    """The reply to each step."""
    replies: list[Any] = []
    clock.set(START)
    for step in story(limits, reservable=limits != PLACES and not isinstance(limits, list)):
        if step is None:
            clock.advance(0.25)
            continue
        method, kwargs = step
        if method in ("settle", "renew", "release"):
            allowed = [each for each in replies if isinstance(each, Decision) and each.allowed]
            kwargs = {"decision": allowed[-1], **kwargs}
        if method in ("ask", "forget"):
            replies.append(limiter.wait_for(driven(limiter.limiter, method, **kwargs)))
        else:
            replies.append(getattr(limiter, method)(**kwargs))
    return replies


# -- Many callers ------------------------------------------------------------------------------------------------------


def test_thousand_callers_share_ten_connections(run: Run, store: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = Limit("400/s", burst=5, name="shared")
    connect, made = Connection._connect, []

    async def counted(self: Connection) -> None:  # the server's own count includes earlier tests
        made.append(self)
        await connect(self)

    monkeypatch.setattr(Connection, "_connect", counted)

    async def call(limiter: AsyncLimiter) -> Decision:
        decision = await limiter.acquire(limit, max_wait=60)
        assert time.time() >= decision._granted_at / 1e6 - 0.002, "returned before its permit was good"
        return decision

    async def test(limiter: AsyncLimiter) -> None:
        decisions = await asyncio.gather(*[call(limiter) for _ in range(1_000)])
        assert all(decision.allowed for decision in decisions)
        assert 1 < len(made) <= 10 + 1, "of the pool, and the link's own"
        starts = [Start(decision._granted_at, 1) for decision in decisions]
        check_every_window(starts, demand("400/s", burst=5, name="shared"))  # the ceiling, exact

    run(test)


def test_callers_of_a_closed_limit_hold_no_connection(run: Run) -> None:
    """One limit is closed for minutes: calls that wait for it hold no connection that others need."""

    async def test(limiter: AsyncLimiter) -> None:
        closed = Limit("1/m", name="closed")
        await limiter.acquire(closed)
        waiting = [asyncio.create_task(limiter.acquire(closed, max_wait=1e6)) for _ in range(50)]
        decisions = await asyncio.gather(*[limiter.acquire(Limit("100/s", name="open"), max_wait=5) for _ in range(50)])
        assert all(decision.allowed for decision in decisions)
        assert not any(task.done() for task in waiting)
        await cancelled(*waiting)

    run(test)


# -- Cancellation ------------------------------------------------------------------------------------------------------


async def cancelled(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        assert isinstance(result, asyncio.CancelledError)


def slots(store: redis.Redis) -> list[str]:
    """Ids of waiting calls, of all limits."""
    return [id for key in store.scan_iter("ratelimit:*:slots") for id in store.zrange(key, 0, -1)]


def holders(store: redis.Redis) -> list[str]:
    """Ids of held leases; two members of the set are none."""
    every = [id for key in store.scan_iter("ratelimit:*:leases") for id in store.zrange(key, 0, -1)]
    return [id for id in every if id not in ("", "\0")]


async def until(done: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 60
    while not done():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.005)


def test_cancelled_call_gives_back_a_permit_taken_ahead(run: Run) -> None:
    async def test(limiter: AsyncLimiter) -> None:
        limit = Limit("2/s", name="half")
        await limiter.acquire(limit)
        task = asyncio.create_task(limiter.acquire(limit, max_wait=5))
        while (await limiter.peek(limit)).retry_after <= 0.5:  # until it has its permit, half a second ahead
            await asyncio.sleep(0)
        await cancelled(task)
        assert (await limiter.peek(limit)).retry_after <= 0.5

    run(test)


@pytest.mark.parametrize("how", ["cancel", "timeout", "scope"])
def test_calls_cancelled_at_any_moment_leave_no_slot_and_no_lease(run: Run, store: redis.Redis, how: str) -> None:
    """In mid-request, waiting, with a permit ahead, with a lease. A cancel scope cancels every await, cleanup too."""
    chance = random.Random(1)
    limits = [Limit("200/s", name="fast"), Concurrency(3, name="places", lease=600)]
    # max_wait is large: on a busy machine leases are held for long, and waits are estimates.

    async def one(limiter: AsyncLimiter, number: int) -> Decision | None:
        seconds = chance.choice([0, chance.uniform(0, 0.02), chance.uniform(0, 0.5)]) if number % 10 else 60
        decision = None
        if how == "scope":
            with anyio.move_on_after(seconds):
                decision = await limiter.acquire(limits, max_wait=1e6)
        elif how == "timeout":
            try:
                decision = await asyncio.wait_for(limiter.acquire(limits, max_wait=1e6), seconds)
            except asyncio.TimeoutError:
                pass
        else:
            task = asyncio.create_task(limiter.acquire(limits, max_wait=1e6))
            await asyncio.wait([task], timeout=seconds)
            if not task.cancel():
                decision = task.result()
            else:
                try:
                    decision = await task
                except asyncio.CancelledError:
                    pass
        if decision is not None:
            assert await limiter.release(decision)
        return decision

    async def test(limiter: AsyncLimiter) -> None:
        got = await asyncio.gather(*[one(limiter, number) for number in range(400)])
        await until(lambda: not limiter._asker._at_work)
        assert slots(store) == []
        assert holders(store) == []
        starts = [Start(decision._granted_at, 1) for decision in got if decision is not None]
        assert 40 <= len(starts) < 350
        check_every_window(starts, demand("200/s", name="fast"))
        # All ten connections are in order: each caller reads its own reply.
        names = [f"n{number}" for number in range(100)]
        states = await asyncio.gather(*[limiter.peek(Limit("1/s", name=name)) for name in names])
        assert [state.states[0].name for state in states] == names

    run(test)


def test_waiting_call_gets_a_lease_soon_after_the_calls_before_it_are_cancelled(run: Run, store: redis.Redis) -> None:
    """Behind 100 others, its first estimate is 1,000 s: it does not wait for that."""
    limit = Concurrency(1, name="one", lease=6000)

    async def test(limiter: AsyncLimiter) -> None:
        async with limiter.permit(limit):
            others = [asyncio.create_task(limiter.acquire(limit, max_wait=1e6)) for _ in range(100)]
            await until(lambda: len(slots(store)) == 100)
            last = asyncio.create_task(limiter.acquire(limit, max_wait=1e6))
            await until(lambda: len(slots(store)) == 101)
            await cancelled(*others)
        assert (await asyncio.wait_for(last, 100)).allowed

    run(test)


async def is_cancelled_after(steps: int, call: Coroutine[Any, Any, Any]) -> bool:
    """Whether a call ends as cancelled if it is cancelled after so many steps of the loop."""
    task = asyncio.create_task(call)
    for _ in range(steps):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    return task.cancelled()


def test_call_cancelled_at_any_step_of_its_request_takes_no_permit(run: Run) -> None:
    limit = Limit("1/h", name="hourly", key="{number}")

    async def test(limiter: AsyncLimiter) -> None:
        await limiter.ping()
        cancelled = 0
        for number in range(200):
            is_cancelled = await is_cancelled_after(number % 50, limiter.acquire(limit, key=str(number)))
            cancelled += is_cancelled
            left = (await limiter.peek(limit, key=str(number))).remaining
            assert left == int(is_cancelled), f"after {number % 50} steps"
        assert cancelled >= 20
        assert limiter._counting is not None
        await limiter._counting.send()
        assert (await limiter.stats("hourly"))["hourly"].permits == 200 - cancelled, "as its callers have them"

    run(test)


def test_call_cancelled_at_any_step_gives_its_connection_back(run: Run) -> None:
    """Connecting or connected: one that is cancelled while it reads a reply leaves a connection to be made anew."""

    async def test(limiter: AsyncLimiter) -> None:
        cancelled_at = set()
        for number in range(200):
            if await is_cancelled_after(number % 50, limiter.peek(API)):
                cancelled_at.add(number % 50)
            assert in_use(limiter) == 0, f"after {number % 50} steps"
        assert len(cancelled_at) >= 5

    run(test)


@pytest.mark.parametrize("limit", [Limit("1/m", name="slow"), Concurrency(500, name="places", lease=600)])
def test_end_of_the_loop_leaves_no_slot_and_no_lease(server: EmbeddedServer, store: redis.Redis, limit: Any) -> None:
    """``asyncio.run`` cancels every task there is, requests under way too."""
    tasks: list[asyncio.Task[Decision]] = []

    async def main() -> None:
        limiter = AsyncLimiter.from_url(server.url + PATIENT)
        tasks.extend(asyncio.create_task(limiter.acquire(limit, max_wait=1e6)) for _ in range(300))
        await until(lambda: len(slots(store) + holders(store)) > 20)

    asyncio.run(main())
    assert sum(task.cancelled() for task in tasks) >= 20
    assert slots(store) == []
    assert len(holders(store)) == sum(not task.cancelled() for task in tasks) * isinstance(limit, Concurrency)


# -- Connections -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limits", [API, PLACES, [API, PLACES]], ids=["rate", "places", "both"])
def test_close_ends_calls_to_a_hung_store(limits: Any) -> None:
    """For callers and for calls that were cancelled before: none is left to a loop that may end now."""

    async def main(own_server: EmbeddedServer) -> None:
        url = own_server.url + "?socket_timeout=60&socket_connect_timeout=60"
        async with redis.asyncio.Redis.from_url(url) as client:
            limiter = AsyncLimiter(client, counts=False)
            await asyncio.gather(*[limiter.peek(limits) for _ in range(4)])
            own_server.freeze()
            calls = [asyncio.create_task(limiter.acquire(limits, max_wait=60)) for _ in range(4)]
            while in_use(limiter) < 4:
                await asyncio.sleep(0)
            for call in calls[:2]:
                call.cancel()
            await limiter.aclose()
            assert not limiter._asker._at_work
            assert in_use(limiter) == 0
            await asyncio.wait(calls)
            assert asyncio.all_tasks() == {asyncio.current_task()}
            assert all(call.cancelled() for call in calls)

    with embedded_server() as own_server:
        asyncio.run(main(own_server))


@pytest.fixture(params=["one", "sentinel", "cluster"])
def url(request: pytest.FixtureRequest) -> str:
    """Of each kind of store, an empty one."""
    if request.param == "sentinel":
        sentinels: Sentinels = request.getfixturevalue("sentinel_store")
        return f"{sentinels.url}/0{PATIENT}&service_name={Sentinels.NAME}"
    if request.param == "cluster":
        cluster: Cluster = request.getfixturevalue("cluster_store")
        return cluster.url + PATIENT
    server: EmbeddedServer = request.getfixturevalue("server")
    request.getfixturevalue("store")
    return server.url + PATIENT


def pool_of(limiter: AsyncLimiter) -> Any:
    """The shared pool; of a cluster, the pool of the node that was asked."""
    if limiter._asker._cluster is None:
        limiter._asker.link._own_is_free = False  # its own connection is in use
        return limiter.client.connection_pool
    (node,) = limiter._asker._cluster._nodes.values()
    return node.connection_pool


def test_connection_freed_for_a_cancelled_caller_goes_to_the_next(url: str) -> None:
    async def main() -> None:
        async with AsyncLimiter.from_url(url, max_connections=1, timeout=5.0) as limiter:
            await limiter.peek(API)
            pool = pool_of(limiter)
            held = pool.get_available_connection()
            first, second, third = [asyncio.create_task(limiter.peek(API)) for _ in range(3)]
            for _ in range(20):  # enough for everything that needs no reply of the store
                await asyncio.sleep(0)
            await cancelled(third)
            await pool.release(held)  # which wakes the first
            first.cancel()
            had = set()
            for _ in range(20):
                await asyncio.sleep(0)
                had |= pool._in_use_connections
            assert first.cancelled()
            assert had == {held}, "the connection is free, and a caller waits for one"
            assert (await second).allowed

    asyncio.run(main())
