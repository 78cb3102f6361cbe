"""Which permits the gate still uses when it comes late. A stall of just so many milliseconds is not to be had."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from celery_ratelimit.worker import queue_timers
from celery_ratelimit.worker import scheduler as module
from celery_ratelimit.worker.capacity import PoolCapacity
from celery_ratelimit.worker.queue_timers import QueueTimers
from celery_ratelimit.worker.request import PendingRequest, State
from celery_ratelimit.worker.request_queue import LimitQueue
from celery_ratelimit.worker.request_resources import RequestResources
from celery_ratelimit.worker.rules import Start
from celery_ratelimit.worker.scheduler import Scheduler

NOW = 100.0


def held_one(interval: float) -> Any:
    message = SimpleNamespace(headers={}, delivery_info={}, properties={})
    task = SimpleNamespace(name="task")
    request: Any = SimpleNamespace(id="1", name="task", task=task, message=message, request_dict={}, delivery_info={})
    pending = object.__new__(PendingRequest)
    for name, value in {
        "request": request,
        "demands": (SimpleNamespace(interval=interval),),
        "plan": SimpleNamespace(leased=False),
        "has_reservation": True,
    }.items():
        setattr(pending, name, value)
    pending.state, pending.at, pending.release_deadline = State.QUEUED, 0.0, NOW + 1e6
    return pending


class Actions:
    """Notes who starts, by how late that is."""

    max_hold = 1440.0

    def __init__(self, resources: RequestResources) -> None:
        self._resources = resources
        self.started: list[float] = []

    def apply(self, limit_queue: LimitQueue, pending: PendingRequest, action: Any, now: float) -> bool:
        assert isinstance(action, Start)
        self._resources.leave(limit_queue, pending, starts=True)
        self.started.append(round(now - pending.at, 3))
        return True


@pytest.fixture
def scheduler(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Before a pool with room, at ``NOW``."""
    for each in (queue_timers, module):
        monkeypatch.setattr(each, "monotonic", lambda: NOW)
    scheduler: Any = object.__new__(Scheduler)
    scheduler._capacity = PoolCapacity(SimpleNamespace(idle=lambda pending: 8, mean_runtime=lambda name: 1.0))  # type: ignore[arg-type]
    prefetch: Any = SimpleNamespace(leave=lambda pending: None)
    scheduler._resources = RequestResources(None, scheduler._capacity, prefetch, None)  # type: ignore[arg-type]
    scheduler._actions = Actions(scheduler._resources)
    scheduler.attribution = SimpleNamespace(pair=None)
    return scheduler


def line_of(scheduler: Any, interval: float, *lates: float) -> LimitQueue:
    limit_queue = LimitQueue()
    for late in lates:
        limit_queue.hold(held_one(interval), NOW - late, 1)
        scheduler._capacity.promises.add(NOW - late, "task")
    return limit_queue


@pytest.mark.parametrize(
    ("lates", "started"),
    [
        ([0.0], [0.0]),
        ([0.09], [0.09]),  # waited for a process, alone
        ([0.11], []),
        ([0.07, 0.06, 0.05, 0.03, 0.02, 0.01], [0.03, 0.02, 0.01]),  # the machine did something else
        ([0.09, -0.01], [0.09]),  # the other one is not due
        ([0.3, 0.2, 0.09], [0.09]),
    ],
)
def test_of_permits_that_are_late_together_only_the_latest_are_used(
    scheduler: Any, lates: list[float], started: list[float]
) -> None:
    limit_queue = line_of(scheduler, 0.01, *lates)
    scheduler._start_due(limit_queue)
    assert scheduler._actions.started == started
    asks_again = [round(NOW - pending.at, 3) for pending in limit_queue.with_slot]
    assert asks_again == [late for late in lates if late >= 0 and late not in started], "in their order"
    assert scheduler._capacity.promises.by(NOW + 1) == sum(late < 0 for late in lates), (
        "those that were not used are forgotten"
    )


def test_an_interval_late_is_not_too_late(scheduler: Any) -> None:
    scheduler._start_due(line_of(scheduler, 0.5, 0.45, 0.02))
    assert scheduler._actions.started == [0.45, 0.02]


def test_who_has_no_permit_makes_nobody_stale(scheduler: Any) -> None:
    limit_queue = line_of(scheduler, 0.01, 0.06)
    limit_queue.ask_again(held_one(0.01), NOW - 0.05)
    scheduler._start_due(limit_queue)
    assert scheduler._actions.started == [0.06]


@pytest.mark.parametrize("needs_process", [False, True])
def test_whose_time_has_come_while_another_asked_is_started_at_once(scheduler: Any, needs_process: bool) -> None:
    """It was not due when the line looked, and is when the timer is set. If the line wants a process, that is known."""
    limit_queue = line_of(scheduler, 0.01, 0.001)
    limit_queue.needs_process = needs_process
    rings: list[float] = []
    worker: Any = SimpleNamespace(timers=SimpleNamespace(call_after=lambda seconds, _: rings.append(seconds)))
    turns = scheduler._capacity.turns
    QueueTimers(worker, turns, lambda: 0.0, scheduler._actions.max_hold, lambda limit_queue: None).set(limit_queue)
    assert rings == ([scheduler._actions.max_hold] if needs_process else [0.0])
