"""Polls of the backlog: the loop goes on between a call to a distant store and its reply."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from celery_ratelimit import StoreUnavailable
from celery_ratelimit.backlog.poll_timer import PollTimer
from celery_ratelimit.backlog.tuning import NEXT_TURN, QUIET_POLL_INTERVAL, TURN
from celery_ratelimit.store_calls.outage import NotAsked
from celery_ratelimit.store_calls.store_calls import Asks, Reply, StoreCalls, advance, asked

PAUSE = 0.2


class World:
    """A clock with timers, a store that replies on demand, and a record of the polls."""

    def __init__(self) -> None:
        self.now = 100.0
        self.timers: list[tuple[float, int, list[Callable[[], None]]]] = []
        self.numbers = itertools.count()
        self.is_worth_threads = self.is_lost = False
        self.in_flight: list[tuple[Callable[[], Any], Future[Any]]] = []
        self.heard: list[Any] = []
        self.begun: list[float] = []
        self.closed = 0
        self.questions: list[Callable[[], Any]] = [lambda: "due", lambda: "left"]
        self.done = True
        self.is_allowed = True
        timers: Any = SimpleNamespace(
            call_after=self.call_after,
            call_soon_wakes_loop=True,
            call_soon=lambda call: call(),
            guarded=lambda call: lambda: self.contained(call),
        )
        outage: Any = self
        worker: Any = SimpleNamespace(timers=timers, broker=SimpleNamespace(no_event_loop=False))
        self.calls = StoreCalls(worker, outage)
        self.calls.latency = self  # type: ignore[assignment]
        self.calls._threads = self  # type: ignore[assignment]
        self.raised: list[Exception] = []
        self.poll_timer = PollTimer(worker, outage, self.calls, self.poll, lambda: PAUSE, lambda now: self.is_allowed)

    # -- The worker's timers ---------------------------------------------------------------------------------------

    def call_after(self, seconds: float, call: Callable[[], None]) -> Callable[[], None]:
        waiting = [call]
        heapq.heappush(self.timers, (self.now + seconds, next(self.numbers), waiting))
        return waiting.clear

    def wait(self, seconds: float) -> None:
        end = self.now + seconds
        while self.timers and self.timers[0][0] <= end:
            self.now, _, waiting = heapq.heappop(self.timers)
            if waiting:
                waiting.pop()()
        self.now = end

    # -- Threads, and how far away the store is --------------------------------------------------------------------

    def note(self, seconds: float) -> None:
        """The latency is what a test says."""

    def submit(self, call: Callable[[], Any]) -> Future[Any]:
        future: Future[Any] = Future()
        self.in_flight.append((call, future))
        return future

    def answer(self) -> None:
        call, future = self.in_flight.pop(0)
        future.set_result(call())

    def contained(self, call: Callable[[], None]) -> None:
        try:
            call()
        except ZeroDivisionError as error:
            self.raised.append(error)

    def end(self) -> None:
        """With a call in flight, whose reply comes meanwhile."""
        call, future = self.in_flight.pop()
        reply = call()
        self.calls._connection = object()  # as when the gate closes
        future.set_result(reply)
        self.poll_timer.end()

    # -- The outage ------------------------------------------------------------------------------------------------

    def __bool__(self) -> bool:
        return self.is_lost

    def ask(self, question: Callable[[], Any], otherwise: Any) -> Any:
        return otherwise if self.is_lost else self.read(question, otherwise)

    def read(self, reply: Callable[[], Any], otherwise: Any, *, quietly: bool = False) -> Any:
        try:
            return reply()
        except NotAsked:
            return otherwise
        except StoreUnavailable:
            self.is_lost = self.is_lost or not quietly
            return otherwise

    # -- A poll ----------------------------------------------------------------------------------------------------

    def poll(self, until: float) -> Asks[bool]:
        assert until == self.now + TURN
        self.begun.append(self.now)
        try:
            for question in self.questions:
                self.heard.append((yield question))
        finally:
            self.closed += 1
        return self.done


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    world = World()
    monkeypatch.setattr("time.monotonic", lambda: world.now)
    world.poll_timer.begin(PAUSE)
    return world


def lost() -> Any:
    raise StoreUnavailable("no answer")


def wrong() -> Any:
    raise ZeroDivisionError


def test_poll_of_a_near_store_completes_at_once_and_repeats(world: World) -> None:
    world.wait(PAUSE)
    assert (world.heard, world.closed) == (["due", "left"], 1)
    world.wait(PAUSE)
    assert world.closed == 2
    world.done = False
    world.wait(PAUSE)
    world.wait(NEXT_TURN)
    assert world.closed == 4, "more tasks are due"


def test_poll_of_a_distant_store_returns_to_the_loop_after_each_call(world: World) -> None:
    world.is_worth_threads = True
    world.wait(PAUSE)
    for heard in ([], ["due"]):
        assert (world.heard, len(world.in_flight)) == (heard, 1)
        world.answer()
    assert (world.heard, world.closed, world.in_flight) == (["due", "left"], 1, [])
    world.wait(PAUSE)
    assert len(world.in_flight) == 1, "the next poll"


def test_poll_requested_during_a_poll_follows_it_once(world: World) -> None:
    world.is_worth_threads = True
    world.wait(PAUSE)
    world.poll_timer.soon(0.01)
    world.poll_timer.soon(5 * PAUSE)  # the earlier one counts
    world.wait(5 * QUIET_POLL_INTERVAL)
    assert len(world.begun) == 1
    for seconds in (NEXT_TURN, PAUSE - NEXT_TURN):
        world.answer()
        world.answer()
        world.wait(seconds)
        assert len(world.begun) == 2, "once"


def test_requested_poll_keeps_its_time_if_the_current_one_ends(world: World) -> None:
    world.is_worth_threads = True
    world.wait(PAUSE)
    world.poll_timer.soon(PAUSE / 4)
    world.answer()
    world.answer()
    world.wait(PAUSE / 4)
    assert len(world.begun) == 2


def test_poll_continues_in_the_loop_when_latency_drops(world: World) -> None:
    world.is_worth_threads = True
    world.wait(PAUSE)
    world.is_worth_threads = False
    world.answer()
    assert (world.heard, world.closed) == (["due", "left"], 1)


@pytest.mark.parametrize("use_threads", [False, True])
def test_outage_ends_a_poll_and_polling_resumes(world: World, use_threads: bool) -> None:
    world.is_worth_threads, world.questions = use_threads, [lambda: "due", lost, lambda: "never"]
    world.wait(PAUSE)
    while world.in_flight:
        world.answer()
    assert (world.heard, world.closed, world.is_lost) == (["due"], 1, True)
    world.wait(5 * PAUSE)
    assert len(world.begun) == 1, "no poll during an outage"
    world.is_lost, world.questions, world.is_allowed = False, [], False
    world.wait(PAUSE)
    assert len(world.begun) == 1, "no poll while polling is not allowed"
    world.is_allowed = True
    world.wait(PAUSE)
    assert len(world.begun) == 2


@pytest.mark.parametrize("use_threads", [False, True])
def test_error_ends_one_poll_alone(world: World, use_threads: bool) -> None:
    world.is_worth_threads, world.questions = use_threads, [wrong]
    if use_threads:
        world.wait(PAUSE)
        world.answer()
        assert len(world.raised) == 1
    else:
        with pytest.raises(ZeroDivisionError):
            world.wait(PAUSE)
    assert world.closed == 1
    world.questions = []
    world.wait(QUIET_POLL_INTERVAL)
    assert (len(world.begun), world.closed) == (2, 2)


def test_end_publishes_returned_tasks_and_stops_polling(world: World) -> None:
    world.is_worth_threads, world.questions = True, [lambda: "left", lambda: "never"]
    world.wait(PAUSE)
    world.end()
    assert (world.heard, world.closed, world.in_flight) == (["left"], 1, [])
    assert not world.poll_timer.is_running
    world.poll_timer.soon(0.0)
    world.wait(5 * QUIET_POLL_INTERVAL)
    assert len(world.begun) == 1


@pytest.mark.parametrize("question", [lost, wrong])
def test_end_succeeds_if_the_last_call_fails(world: World, question: Callable[[], Any]) -> None:
    world.is_worth_threads, world.questions = True, [question]
    world.wait(PAUSE)
    world.end()
    assert (world.heard, world.closed) == ([], 1)
    world.poll_timer.begin(PAUSE)  # the worker has connected anew
    world.questions = []
    world.wait(PAUSE)
    assert world.closed == 2


def test_operation_without_calls_returns_its_value() -> None:
    def nothing() -> Asks[int]:
        yield from ()
        return 3

    def meets() -> Asks[str]:
        try:
            yield wrong
        except ZeroDivisionError:
            return str((yield lambda: "once more"))
        return "never"

    assert advance(nothing()) == Reply(3)
    assert asked(nothing()) == 3
    assert asked(meets()) == "once more"
