"""Calls to the store on threads or in the loop, and the measured latency."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from threading import Event, get_ident
from types import SimpleNamespace
from typing import Any

import pytest

from celery_ratelimit import StoreUnavailable
from celery_ratelimit.store_calls import store_calls, tuning
from celery_ratelimit.store_calls.outage import NotAsked
from celery_ratelimit.store_calls.store_calls import StoreCalls, StoreLatency
from celery_ratelimit.store_calls.tuning import THREADS_FROM


def calls_of(
    latency: StoreLatency, *, no_event_loop: bool = False, wakes: bool = True, call_soon: Any = None
) -> StoreCalls:
    """Store calls of a worker whose store is not lost."""
    timers = SimpleNamespace(call_soon_wakes_loop=wakes, guarded=lambda call: call, call_soon=call_soon)
    worker: Any = SimpleNamespace(broker=SimpleNamespace(no_event_loop=no_event_loop), timers=timers)
    outage: Any = False
    calls = StoreCalls(worker, outage)
    calls.latency = latency
    return calls


def far() -> StoreLatency:
    latency = StoreLatency()
    latency.note(THREADS_FROM)
    return latency


@pytest.mark.parametrize(
    ("no_event_loop", "wakes", "round_trip", "in_thread"),
    [
        (False, True, THREADS_FROM, True),
        (False, True, THREADS_FROM * 0.9, False),
        (True, True, 1.0, False),
        (False, False, 1.0, False),
    ],
)
def test_threads_call_a_distant_store_if_they_can_wake_the_loop(
    no_event_loop: bool, wakes: bool, round_trip: float, in_thread: bool
) -> None:
    latency, replies = StoreLatency(), []
    latency.note(round_trip)
    calls = calls_of(latency, no_event_loop=no_event_loop, wakes=wakes, call_soon=lambda call: None)
    future = calls.submit(lambda: 1, replies.append)
    assert (future is not None) is in_thread
    assert [reply.get() for reply in replies] == ([] if in_thread else [1])


def test_no_call_is_made_during_an_outage() -> None:
    calls, replies, made = calls_of(far()), [], []
    calls._outage = True  # type: ignore[assignment]
    calls.submit(lambda: made.append(1), replies.append)
    (reply,) = replies
    with pytest.raises(NotAsked):
        reply.get()
    assert made == []


def test_in_loop_call_runs_on_the_loop_thread() -> None:
    caller: list[int] = []
    calls_of(far()).submit(lambda: caller.append(get_ident()), lambda reply: None, in_loop=True)
    assert caller == [get_ident()]


def test_reply_reaches_the_loop_and_raises_the_error() -> None:
    soon: list[Callable[[], None]] = []
    done: Future[Any] = Future()
    calls = calls_of(far(), call_soon=lambda call: (soon.append(call), done.set_result(None)))
    heard: list[Any] = []

    def call() -> Any:
        raise StoreUnavailable("no answer")

    calls.submit(call, heard.append)
    done.result(10)
    assert heard == []
    soon.pop()()
    reply = heard.pop()
    assert reply.seconds >= 0
    with pytest.raises(StoreUnavailable):
        reply.get()


def test_many_calls_of_one_operation_do_not_recurse() -> None:
    def asks() -> Any:
        total = 0
        for number in range(5000):
            total += yield partial(int, number)
        return total

    replies: list[Any] = []
    calls_of(StoreLatency()).run(asks(), replies.append)
    assert replies[0].get() == sum(range(5000))


def test_close_waits_for_the_running_call_and_cancels_queued_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the broker would deliver a message again before its park call is made."""
    waited: list[Any] = []
    monkeypatch.setattr(tuning, "THREADS", 1)
    monkeypatch.setattr(store_calls, "wait", lambda futures, seconds: (waited.extend(futures), goes_on.set()))
    began, goes_on, made, soon, heard = Event(), Event(), [], [], []

    def first() -> None:
        began.set()
        made.append("first")
        assert goes_on.wait(10)

    calls = calls_of(far(), call_soon=soon.append)
    of_first = calls.submit(first, heard.append)
    of_second = calls.submit(lambda: made.append("second"), heard.append)
    assert began.wait(10)
    calls.close()
    assert len(waited) == 1, "the second call is not made"
    assert of_first is not None
    assert of_second is not None
    assert of_first.result(10).get() is None
    with pytest.raises(NotAsked):
        of_second.result(10).get()
    assert made == ["first"]
    for call in soon:
        call()
    assert heard == [], "the replies come too late"


def away(seconds: float) -> StoreLatency:
    distance = StoreLatency()
    for _ in range(300):
        distance.note(seconds)
    return distance


def test_latency_is_a_mean_that_ignores_outliers() -> None:
    distance = StoreLatency()
    distance.note(0.008)
    assert distance.round_trip == 0.001, "one slow answer says little"
    assert away(0.02).round_trip == pytest.approx(0.02)
    assert away(30.0).round_trip == pytest.approx(0.1), "an outage says nothing"


def test_one_quick_reply_within_sixteen_marks_the_store_as_near() -> None:
    """However long its other answers take, since it or the worker is busy."""
    latency = StoreLatency()
    assert not latency.is_worth_threads
    latency.note(0.002)
    assert latency.is_worth_threads
    for seconds in (0.0004, *[0.004] * 15):
        latency.note(seconds)
        assert not latency.is_worth_threads
    assert latency.round_trip > 0.003
    latency.note(0.004)
    assert latency.is_worth_threads, "the near one is long ago"
    latency.note(0.0006)
    assert latency.is_worth_threads, "a little sooner, once"
    latency.note(0.0004)
    assert not latency.is_worth_threads
