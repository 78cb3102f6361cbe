"""Calls to the store on threads or in the loop, and the measured latency."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from queue import Queue
from threading import Event, get_ident
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from celery_ratelimit import StoreUnavailable
from celery_ratelimit.store_calls import store_calls, tuning
from celery_ratelimit.store_calls.outage import NotAsked
from celery_ratelimit.store_calls.store_calls import StoreCalls, StoreLatency
from celery_ratelimit.store_calls.tuning import THREADS_FROM


def latency_of(*seconds: float) -> StoreLatency:
    latency = StoreLatency()
    for each in seconds:
        latency.note(each)
    return latency


def calls_of(*seconds: float, no_event_loop: bool = False, wakes: bool = True, call_soon: Any = None) -> StoreCalls:
    """Store calls of a worker whose store is not lost, and has answered in so many seconds."""
    timers = SimpleNamespace(call_soon_wakes_loop=wakes, guarded=lambda call: call, call_soon=call_soon or Mock())
    worker: Any = SimpleNamespace(broker=SimpleNamespace(no_event_loop=no_event_loop), timers=timers)
    outage: Any = False
    calls = StoreCalls(worker, outage)
    calls.latency = latency_of(*seconds)
    return calls


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
    replies: list[Any] = []
    calls = calls_of(round_trip, no_event_loop=no_event_loop, wakes=wakes)
    future = calls.submit(lambda: 1, replies.append)
    assert (future is not None) is in_thread
    assert [reply.get() for reply in replies] == ([] if in_thread else [1])


def test_no_call_is_made_during_an_outage() -> None:
    calls, replies, call = calls_of(THREADS_FROM), [], Mock()
    calls._outage = True  # type: ignore[assignment]
    calls.submit(call, replies.append)
    with pytest.raises(NotAsked):
        replies[0].get()
    assert not call.called


def test_in_loop_call_runs_on_the_loop_thread() -> None:
    replies: list[Any] = []
    calls_of(THREADS_FROM).submit(get_ident, replies.append, in_loop=True)
    assert replies[0].get() == get_ident()


def test_reply_reaches_the_loop_and_raises_the_error() -> None:
    soon, heard = Queue[Callable[[], None]](), []
    calls_of(THREADS_FROM, call_soon=soon.put).submit(Mock(side_effect=StoreUnavailable("no answer")), heard.append)
    receive = soon.get(timeout=10)
    assert heard == []
    receive()
    (reply,) = heard
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
    calls_of().run(asks(), replies.append)
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

    calls = calls_of(THREADS_FROM, call_soon=soon.append)
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


def test_threads_end_with_the_worker() -> None:
    calls, before = calls_of(THREADS_FROM), set(threading.enumerate())
    for _ in range(2):
        in_flight = calls.submit(lambda: 1, lambda reply: None)
        assert in_flight is not None
        assert in_flight.result(10).get() == 1
        started = set(threading.enumerate()) - before
        assert started
        calls.close()
        for thread in started:
            thread.join(10)
        assert not any(thread.is_alive() for thread in started)


def test_latency_is_a_mean_that_ignores_outliers() -> None:
    assert latency_of(0.008).round_trip == 0.001, "one slow answer says little"
    assert latency_of(*[0.02] * 300).round_trip == pytest.approx(0.02)
    assert latency_of(*[30.0] * 300).round_trip == pytest.approx(0.1), "an outage says nothing"


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
