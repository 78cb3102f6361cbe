"""``AsyncLimiter``: the decisions of ``Limiter``, for a thousand callers on ten connections, cancelled ones too."""

from __future__ import annotations

import asyncio
import math
import random
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

import anyio
import pytest
import redis
import redis.asyncio
from redis.asyncio.connection import Connection

from celery_ratelimit import (
    AsyncLimiter,
    Concurrency,
    ConfigurationError,
    Decision,
    ImpossibleRequest,
    Limit,
    Limiter,
    StoreUnavailable,
)
from celery_ratelimit.limiter.limit_request import LimitRequest
from celery_ratelimit.limiter.operation import Operation, UninterruptedAcquire
from celery_ratelimit.testing import EmbeddedServer, embedded_server
from tests.asking import driven
from tests.conftest import PATIENT, START, Clock
from tests.lua.frozen import FROZEN_STORE, demand
from tests.lua.windows import Start, check_every_window

API = Limit("10/s", name="api")
PLACES = Concurrency(2, name="places", lease=60)


@pytest.fixture
def run(server: EmbeddedServer, store: redis.Redis) -> Callable[[Callable[[AsyncLimiter], Awaitable[None]]], None]:
    """Runs a test's coroutine in a loop of its own, with a limiter on the real clock."""

    def in_loop(test: Callable[[AsyncLimiter], Awaitable[None]]) -> None:
        async def main() -> None:
            async with AsyncLimiter.from_url(server.url + PATIENT, quotas={"api": API}) as limiter:
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

#: Whatever a caller can do, as (method, arguments). ``None`` stands for a step of the clock.
Step = tuple[str, dict[str, Any]] | None


def everything(limits: Any, *, reservable: bool) -> Iterator[Step]:
    """A story in which every method has something to say: grants, refusals, slots, and things given back."""
    cost: dict[str, Any] = {"cost": 1}
    asked = [demand_of(each) for each in (limits if isinstance(limits, list) else [limits])]
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
        for id in ("y", "y", "x", "nobody"):
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


def demand_of(limit: Any) -> LimitRequest:
    return LimitRequest(limit, limit.name)


@pytest.mark.parametrize("limits", [*EACH, EACH], ids=[*[each.name for each in EACH], "together"])
def test_the_same_decisions_as_the_limiter(
    server: EmbeddedServer, store: redis.Redis, clock: Clock, limits: Any
) -> None:
    with redis.Redis.from_url(server.url) as client:
        limiter = Limiter(client, replace_includes={"now": FROZEN_STORE})
        told = play(limits, clock, lambda method, kwargs: call_of(limiter, method)(**kwargs))
    store.flushall()

    async def awaited() -> list[Any]:
        async with redis.asyncio.Redis.from_url(server.url) as client:
            limiter = AsyncLimiter(client, replace_includes={"now": FROZEN_STORE})
            return await play_awaited(limits, clock, limiter)

    assert asyncio.run(awaited()) == told
    decisions = [each for each in told if isinstance(each, Decision)]
    assert {each.allowed for each in decisions} == {True, False}, "the story has both"


def play(limits: Any, clock: Clock, call: Callable[[str, dict[str, Any]], Any]) -> list[Any]:
    """What each step answered."""
    told: list[Any] = []
    clock.set(START)
    for step in everything(limits, reservable=limits != PLACES and not isinstance(limits, list)):
        if step is None:
            clock.advance(0.25)
            continue
        told.append(call(*filled(step, told)))
    return told


async def play_awaited(limits: Any, clock: Clock, limiter: AsyncLimiter) -> list[Any]:
    told: list[Any] = []
    clock.set(START)
    for step in everything(limits, reservable=limits != PLACES and not isinstance(limits, list)):
        if step is None:
            clock.advance(0.25)
            continue
        method, kwargs = filled(step, told)
        told.append(await call_of(limiter, method)(**kwargs))
    return told


def call_of(limiter: Limiter | AsyncLimiter, method: str) -> Callable[..., Any]:
    """One of the verbs, or what is asked about demands."""
    return partial(driven, limiter, method) if method in ("ask", "forget") else getattr(limiter, method)


def filled(step: tuple[str, dict[str, Any]], told: list[Any]) -> tuple[str, dict[str, Any]]:
    method, kwargs = step
    if method in ("settle", "renew", "release"):
        allowed = [each for each in told if isinstance(each, Decision) and each.allowed]
        return method, {"decision": allowed[-1], **kwargs}
    return method, kwargs


def test_errors_are_those_of_the_limiter(run: Run) -> None:
    async def test(limiter: AsyncLimiter) -> None:
        with pytest.raises(ConfigurationError, match="no quota named 'strpe'"):
            await limiter.acquire("strpe")
        with pytest.raises(ImpossibleRequest, match="'api' can never grant 2"):
            await limiter.acquire("api", cost=2)
        with pytest.raises(ConfigurationError, match="a reservation needs an id"):
            await limiter.reserve("api", id="", horizon=1)
        refused = (await limiter.acquire("api"), await limiter.acquire("api"))[1]
        with pytest.raises(ConfigurationError, match="nothing to settle"):
            await limiter.settle(refused, 1)

    run(test)


@pytest.mark.parametrize("url", ["http://host", "", "redis://:hunter2@host:x"])
def test_a_url_of_something_else_is_an_error_without_its_password(url: str) -> None:
    with pytest.raises(ConfigurationError, match="not the URL of a Redis or Valkey store") as caught:
        AsyncLimiter.from_url(url)
    assert "hunter2" not in str(caught.value)


def test_a_store_that_forgets_its_scripts_is_sent_them_again(run: Run, store: redis.Redis) -> None:
    async def test(limiter: AsyncLimiter) -> None:
        assert (await limiter.acquire(API)).allowed
        store.script_flush()
        assert not (await limiter.acquire(API)).allowed

    run(test)


def test_it_is_loaded_when_it_is_asked_for() -> None:
    said = (
        "import sys, celery_ratelimit as c\n"
        "assert 'celery_ratelimit.limiter.async_limiter' not in sys.modules; c.AsyncLimiter"
    )
    subprocess.run([sys.executable, "-c", said], check=True)


# -- Many callers ------------------------------------------------------------------------------------------------------


def test_a_thousand_callers_share_ten_connections(
    run: Run, store: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = Limit("400/s", burst=5, name="shared")
    connect, made = Connection._connect, []

    async def counted(self: Connection) -> None:  # the server's own count has those of the tests before, too
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


def test_callers_of_many_kinds_do_not_starve_each_other(run: Run) -> None:
    """One limit is closed for minutes: those who wait for it hold no connection that others need."""

    async def test(limiter: AsyncLimiter) -> None:
        closed = Limit("1/m", name="closed")
        await limiter.acquire(closed)
        waiting = [asyncio.create_task(limiter.acquire(closed, max_wait=1e6)) for _ in range(50)]
        decisions = await asyncio.gather(*[limiter.acquire(Limit("100/s", name="open"), max_wait=5) for _ in range(50)])
        assert all(decision.allowed for decision in decisions)
        assert not any(task.done() for task in waiting)
        await cancelled(*waiting)

    run(test)


def test_a_call_that_could_not_be_served_in_time_is_refused_at_once(run: Run, store: redis.Redis) -> None:
    async def test(limiter: AsyncLimiter) -> None:
        limit = Limit("1/m", name="slow")
        await limiter.acquire(limit)
        began = time.monotonic()
        refused = await limiter.acquire(limit, max_wait=50.0)
        assert time.monotonic() - began < 40, "it has not waited"
        assert (refused.allowed, refused.limited_by) == (False, "slow")
        assert refused.retry_after > 50
        assert slots(store) == []

    run(test)


class Scripted(AsyncLimiter):
    """Answers from a list; writes down what it was asked."""

    def __init__(self, *answers: Decision) -> None:
        super().__init__(redis.asyncio.Redis(port=1))
        self.answers = list(answers)
        self.asked: list[tuple[str, float, float]] = []
        self.forgotten: list[str] = []
        asker: Any = self._asker
        asker.link.takes_bytes = False  # no call is prepared
        asker.core.ask_for_turn, asker.core.forget = self._say, self._forgets

    def _say(self, asked: UninterruptedAcquire) -> Operation[Decision]:
        yield from ()
        self.asked.append((asked.id, asked.horizon, asked.claim))
        return self.answers.pop(0)

    def _forgets(self, demands: Any, *, id: str) -> Operation[None]:
        yield from ()
        self.forgotten.append(id)


def test_a_waiting_call_returns_to_its_slot_and_gives_it_back_if_that_has_moved_too_far() -> None:
    """As ``Limiter``, see ``tests/unit/test_limiter.py``."""
    yes, no, far = (Decision(allowed, 1, 0, wait, wait, None) for allowed, wait in ((True, 0), (False, 0), (False, 61)))
    limiter = Scripted(no, no, yes)
    assert asyncio.run(limiter.acquire(API, max_wait=60)).allowed
    ids, horizons, claims = zip(*limiter.asked, strict=True)
    assert len(set(ids)) == 1
    assert horizons == (1.0, 1.0, 1.0)
    assert 59 < claims[2] <= claims[1] <= claims[0] <= 60
    assert not limiter.forgotten

    limiter = Scripted(no, far)
    assert asyncio.run(limiter.acquire(API, max_wait=60)) == far
    assert limiter.forgotten == [limiter.asked[0][0]]

    limiter = Scripted(far)
    assert asyncio.run(limiter.acquire(API)) == far
    assert limiter.asked == [("", 0.0, 0.0)]
    assert not limiter.forgotten

    limiter = Scripted(far)
    assert asyncio.run(limiter.acquire(API, max_wait=60)) == far
    assert not limiter.forgotten, "no slot was kept"

    limiter = Scripted(replace(yes, retry_after=0.02))
    assert asyncio.run(limiter.acquire(API, max_wait=60)).retry_after == 0.0, "it has slept"


@pytest.mark.parametrize("for_ever", [None, math.inf])
def test_a_call_may_wait_for_ever(run: Run, for_ever: float | None) -> None:
    async def called() -> str:
        return "called"

    async def test(limiter: AsyncLimiter) -> None:
        limit = Limit("20/s", name="fast")
        decisions = [await limiter.acquire(limit, max_wait=for_ever) for _ in range(3)]
        assert [decision.allowed for decision in decisions] == [True] * 3
        async with limiter.permit(limit, max_wait=for_ever) as decision:
            assert decision.allowed
        assert await limiter.limited(limit, max_wait=for_ever)(called)() == "called"

    run(test)


# -- Cancellation ------------------------------------------------------------------------------------------------------


async def cancelled(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        assert isinstance(result, asyncio.CancelledError)


def slots(store: redis.Redis) -> list[str]:
    """Who waits, in all limits."""
    return [id for key in store.scan_iter("ratelimit:*:slots") for id in store.zrange(key, 0, -1)]


def holders(store: redis.Redis) -> list[str]:
    """Who holds a place; two members of the set are not holders."""
    every = [id for key in store.scan_iter("ratelimit:*:leases") for id in store.zrange(key, 0, -1)]
    return [id for id in every if id not in ("", "\0")]


async def until(done: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 60
    while not done():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.005)


def test_a_waiting_call_that_is_cancelled_gives_its_slot_back(run: Run, store: redis.Redis) -> None:
    async def test(limiter: AsyncLimiter) -> None:
        limit = Limit("1/m", name="slow")
        await limiter.acquire(limit)
        tasks = [asyncio.create_task(limiter.acquire(limit, max_wait=1e6)) for _ in range(3)]
        await until(lambda: len(slots(store)) == 3)
        assert (await limiter.peek(limit)).retry_after > 180
        await cancelled(*tasks)
        assert slots(store) == []
        assert (await limiter.peek(limit)).retry_after <= 60

    run(test)


def test_a_permit_that_was_taken_ahead_comes_back(run: Run) -> None:
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
def test_calls_that_are_cancelled_at_any_moment_leave_nothing(run: Run, store: redis.Redis, how: str) -> None:
    """In mid-request, in line, with a permit ahead, with a place. A cancel scope cancels every await, cleanup too."""
    chance = random.Random(1)
    limits = [Limit("200/s", name="fast"), Concurrency(3, name="places", lease=600)]
    # Nobody is told that it would take too long: on a busy machine places are held for long, and waits are estimates.

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
        assert 40 <= sum(decision is not None for decision in got) < 350
        # All ten connections are in order: each caller reads its own reply.
        names = [f"n{number}" for number in range(100)]
        states = await asyncio.gather(*[limiter.peek(Limit("1/s", name=name)) for name in names])
        assert [state.states[0].name for state in states] == names

    run(test)


def test_a_call_that_waits_for_a_place_notices_that_the_line_has_gone(run: Run, store: redis.Redis) -> None:
    """Behind a hundred others it is told ten seconds, at a first guess; then they go, and the place is free."""
    limit = Concurrency(1, name="one", lease=600)

    async def test(limiter: AsyncLimiter) -> None:
        async with limiter.permit(limit):
            line = [asyncio.create_task(limiter.acquire(limit, max_wait=1e6)) for _ in range(100)]
            await until(lambda: len(slots(store)) == 100)
            last = asyncio.create_task(limiter.acquire(limit, max_wait=1e6))
            await until(lambda: len(slots(store)) == 101)
            told, began = (await limiter.peek(limit)).retry_after, time.monotonic()
            await cancelled(*line)
        assert (await last).allowed
        assert time.monotonic() - began < told

    run(test)


def test_a_call_that_is_cancelled_in_mid_request_leaves_its_permit(run: Run) -> None:
    """At every step of the loop on the way of a request and its reply."""
    limit = Limit("1/h", name="hourly", key="{step}")

    async def test(limiter: AsyncLimiter) -> None:
        await limiter.ping()
        cancelled_at = []
        for step in range(200):
            task = asyncio.create_task(limiter.acquire(limit, key=str(step)))
            for _ in range(step % 50):
                await asyncio.sleep(0)
            task.cancel()
            result = (await asyncio.gather(task, return_exceptions=True))[0]
            if isinstance(result, asyncio.CancelledError):
                cancelled_at.append(step)
            left = (await limiter.peek(limit, key=str(step))).remaining
            assert left == int(isinstance(result, asyncio.CancelledError)), f"after {step % 50} steps"
        assert len(cancelled_at) >= 20
        assert limiter._counting is not None
        await limiter._counting.send()
        assert (await limiter.stats("hourly"))["hourly"].permits == 200 - len(cancelled_at), "as its callers have them"

    run(test)


def test_a_call_that_is_cancelled_at_any_step_gives_its_connection_back(run: Run) -> None:
    """Connecting or connected: one that is cancelled while it reads a reply leaves a connection to be made anew."""

    async def test(limiter: AsyncLimiter) -> None:
        cancelled_at = set()
        for step in range(200):
            task = asyncio.create_task(limiter.peek(API))
            for _ in range(step % 50):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            if task.cancelled():
                cancelled_at.add(step % 50)
            assert in_use(limiter) == 0, f"after {step % 50} steps"
        assert len(cancelled_at) >= 5

    run(test)


def test_counts_that_are_under_way_when_all_callers_are_served_give_their_connection_back(run: Run) -> None:
    async def test(limiter: AsyncLimiter) -> None:
        await limiter.acquire(API)
        assert limiter._counting is not None
        limiter._asker.start(limiter._counting.send())  # as it does each second
        await asyncio.sleep(0)
        assert in_use(limiter) == 1

    run(test)


@pytest.mark.parametrize("limit", [Limit("1/m", name="slow"), Concurrency(500, name="places", lease=600)])
def test_the_end_of_the_loop_leaves_nothing(server: EmbeddedServer, store: redis.Redis, limit: Any) -> None:
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


def test_law_1_holds_while_callers_are_cancelled(run: Run) -> None:
    """Every other caller gives up. Nobody gets more for it, and all who stay are served."""

    async def test(limiter: AsyncLimiter) -> None:
        tasks = [asyncio.create_task(limiter.acquire(Limit("200/s", name="fast"), max_wait=60)) for _ in range(600)]
        await asyncio.sleep(0.2)
        for task in tasks[::2]:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert sum(isinstance(result, asyncio.CancelledError) for result in results) >= 200
        decisions = [result for result in results if isinstance(result, Decision)]
        starts = [Start(decision._granted_at, 1) for decision in decisions]
        assert len(starts) >= 300
        check_every_window(starts, demand("200/s", name="fast"))

    run(test)


# -- Stores that do not answer -----------------------------------------------------------------------------------------


@pytest.fixture
def own_server() -> Iterator[EmbeddedServer]:
    """A store that this test may kill and freeze."""
    with embedded_server(persist=True) as running:
        yield running


def with_limiter_on(
    server: EmbeddedServer, test: Callable[[AsyncLimiter], Coroutine[Any, Any, None]], options: str = ""
) -> None:
    async def main() -> None:
        async with AsyncLimiter.from_url(server.url + options) as limiter:
            await test(limiter)

    asyncio.run(main())


def test_a_dead_store_is_an_error_at_once_and_nothing_after_it_is_back(own_server: EmbeddedServer) -> None:
    async def test(limiter: AsyncLimiter) -> None:
        await limiter.ping()
        own_server.kill()
        calls = [limiter.acquire, limiter.peek, limiter.reset, lambda limit: limiter.acquire(limit, max_wait=60)]
        for call in calls:
            began = time.monotonic()
            with pytest.raises(StoreUnavailable) as caught:
                await call(API)
            assert time.monotonic() - began < 30
            assert caught.value.__cause__ is not None
        with pytest.raises(StoreUnavailable):
            await limiter.ping()
        began = time.monotonic()
        results = await asyncio.gather(*[limiter.acquire(API) for _ in range(1_000)], return_exceptions=True)
        assert all(isinstance(result, StoreUnavailable) for result in results)
        assert time.monotonic() - began < 30
        own_server.start()
        assert (await limiter.acquire(API)).allowed

    with_limiter_on(own_server, test, "?socket_timeout=60&socket_connect_timeout=60")


def test_a_restart_goes_unnoticed(own_server: EmbeddedServer) -> None:
    async def test(limiter: AsyncLimiter) -> None:
        for _ in range(2):
            await asyncio.gather(*[limiter.peek(API) for _ in range(30)])  # on every connection
            own_server.kill()
            own_server.start()
            await asyncio.gather(*[limiter.peek(API) for _ in range(30)])

    with_limiter_on(own_server, test, PATIENT)


def test_a_hung_store_costs_its_timeout_and_its_late_reply_is_nobodys(own_server: EmbeddedServer) -> None:
    others = [Limit("1/m", name=f"other{n}") for n in range(3)]

    async def test(limiter: AsyncLimiter) -> None:
        await asyncio.gather(*[limiter.peek(API) for _ in range(10)])
        own_server.freeze()
        began = time.monotonic()
        results = await asyncio.gather(*[limiter.acquire(others) for _ in range(10)], return_exceptions=True)
        assert all(isinstance(result, StoreUnavailable) for result in results)
        assert time.monotonic() - began < 15, "one after the other they take twenty seconds"
        own_server.thaw()
        # The replies to the calls that were given up tell of three limits.
        for decision in await asyncio.gather(*[limiter.peek(API) for _ in range(20)]):
            assert [state.name for state in decision.states] == ["api"]

    with_limiter_on(own_server, test, "?socket_timeout=2&socket_connect_timeout=2")


@pytest.mark.parametrize("limits", [API, PLACES, [API, PLACES]], ids=["rate", "places", "both"])
def test_what_is_under_way_on_a_hung_store_has_ended_when_the_limiter_is_closed(
    own_server: EmbeddedServer, limits: Any
) -> None:
    """For callers, and for those that were cancelled before: none is left to a loop that may end now."""

    async def main() -> None:
        url = own_server.url + "?socket_timeout=60&socket_connect_timeout=60"
        async with redis.asyncio.Redis.from_url(url) as client:
            limiter = AsyncLimiter(client, counts=False)
            await asyncio.gather(*[limiter.peek(limits) for _ in range(4)])
            own_server.freeze()
            try:
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
            finally:
                own_server.thaw()

    asyncio.run(main())


def test_a_client_that_is_not_ours_is_left_open(server: EmbeddedServer, store: redis.Redis) -> None:
    async def main() -> None:
        async with redis.asyncio.Redis.from_url(server.url) as client:
            async with AsyncLimiter(client) as limiter:
                assert (await limiter.acquire(API)).allowed
                connection = await client.client_id()
            assert await client.client_id() == connection

    asyncio.run(main())


def test_threads_and_loops_share_a_limit(server: EmbeddedServer, store: redis.Redis) -> None:
    """A plain limiter in threads, and an asyncio one: one bucket, one line."""
    limit, limiter = Limit("100/s", name="shared"), Limiter.from_url(server.url + PATIENT)

    async def main() -> list[Decision]:
        async with AsyncLimiter.from_url(server.url + PATIENT) as other:
            return await asyncio.gather(*[other.acquire(limit, max_wait=60) for _ in range(100)])

    with ThreadPoolExecutor(16) as threads:
        theirs = [threads.submit(limiter.acquire, limit, max_wait=60) for _ in range(100)]
        decisions = asyncio.run(main()) + [each.result() for each in theirs]
    assert all(decision.allowed for decision in decisions)
    starts = [Start(decision._granted_at, 1) for decision in decisions]
    check_every_window(starts, demand("100/s", name="shared"))
