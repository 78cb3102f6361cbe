"""Cancelled timers of the worker are removed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from celery.utils.timer2 import Timer as ThreadedTimer
from kombu.asynchronous.timer import Timer

from celery_ratelimit._celery.timers import MAX_CANCELLED, Timers


@pytest.mark.parametrize("timer", [Timer(), ThreadedTimer()], ids=["loop", "thread"])
def test_cancelled_timers_are_removed(timer: Any) -> None:
    """A request queue sets a timer for minutes ahead and ends at once: 0.8 kB for each task with a limit by key."""
    timer.start = lambda: None  # no thread
    consumer = SimpleNamespace(timer=timer, hub=None, pool=SimpleNamespace(is_green=False))
    timers = Timers(consumer, SimpleNamespace(no_event_loop=False, connection_errors=()))  # type: ignore[arg-type]
    called: list[int] = []
    for number in range(3):
        timers.call_after(1000.0 + number, lambda number=number: called.append(number))  # type: ignore[misc]
    for _ in range(20 * MAX_CANCELLED):
        timers.call_after(3600.0, lambda: None)()
    queue = getattr(timer, "schedule", timer)._queue
    assert len(queue) <= MAX_CANCELLED + 3
    live = sorted(each for each in queue if not each.entry.canceled)
    assert len(live) == 3
    for each in live:
        each.entry()
    assert called == [0, 1, 2], "the others are kept, in their order"
