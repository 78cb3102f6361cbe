"""Permits that the gate uses late, or discards."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from celery_ratelimit.worker import queue_processor, request_queues
from celery_ratelimit.worker.capacity import PoolCapacity
from celery_ratelimit.worker.expected_turns import ExpectedTurns
from celery_ratelimit.worker.pool_scheduler import PoolScheduler
from celery_ratelimit.worker.queue_processor import QueueProcessor
from celery_ratelimit.worker.request import PendingRequest, State
from celery_ratelimit.worker.request_queue import LimitQueue
from celery_ratelimit.worker.request_queues import QueueTimers
from celery_ratelimit.worker.request_resources import RequestResources
from celery_ratelimit.worker.rules import Start

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

    def __init__(self, resources: RequestResources) -> None:
        self._resources = resources
        self.started: list[float] = []

    def apply(self, limit_queue: LimitQueue, pending: PendingRequest, action: Any, now: float) -> bool:
        assert isinstance(action, Start)
        self._resources.leave(limit_queue, pending, starts=True)
        self.started.append(round(now - pending.at, 3))
        return True


@pytest.fixture
def processor(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Before a pool with room, at ``NOW``."""
    for each in (request_queues, queue_processor):
        monkeypatch.setattr(each, "monotonic", lambda: NOW)
    nothing: Any = None
    capacity = PoolCapacity(SimpleNamespace(idle=lambda pending: 8, mean_runtime=lambda name: 1.0))  # type: ignore[arg-type]
    prefetch: Any = SimpleNamespace(leave=lambda pending: None)
    resources = RequestResources(nothing, nothing, capacity, prefetch, nothing)
    errors = SimpleNamespace(pair=None)
    pool_scheduler = PoolScheduler(nothing, capacity, nothing, prefetch, nothing, nothing)
    actions: Any = Actions(resources)
    processor: Any = QueueProcessor(
        nothing,
        resources,
        pool_scheduler,
        nothing,
        actions,
        nothing,
        errors,
        nothing,  # type: ignore[arg-type]
    )
    processor.capacity = capacity
    return processor


def line_of(processor: Any, interval: float, *lates: float) -> LimitQueue:
    limit_queue = LimitQueue()
    for late in lates:
        limit_queue.grant(held_one(interval), NOW - late, 1)
        processor.capacity.reservations.add(NOW - late, "task")
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
def test_only_the_latest_of_several_late_permits_are_used(
    processor: Any, lates: list[float], started: list[float]
) -> None:
    limit_queue = line_of(processor, 0.01, *lates)
    processor._start_due(limit_queue)
    assert processor._actions.started == started
    asks_again = [round(NOW - pending.at, 3) for pending in limit_queue.reserved]
    assert asks_again == [late for late in lates if late >= 0 and late not in started], "in their order"
    assert processor.capacity.reservations.by(NOW + 1) == sum(late < 0 for late in lates), (
        "those that were not used are forgotten"
    )


def test_permit_less_than_an_interval_late_is_used(processor: Any) -> None:
    processor._start_due(line_of(processor, 0.5, 0.45, 0.02))
    assert processor._actions.started == [0.45, 0.02]


def test_deferred_request_does_not_make_permits_stale(processor: Any) -> None:
    limit_queue = line_of(processor, 0.01, 0.06)
    limit_queue.defer(held_one(0.01), NOW - 0.05)
    processor._start_due(limit_queue)
    assert processor._actions.started == [0.06]


@pytest.mark.parametrize("needs_process", [False, True])
def test_overdue_request_gets_an_immediate_timer(processor: Any, needs_process: bool) -> None:
    """It was not due when the line looked, and is when the timer is set. If the line wants a process, that is known."""
    limit_queue = line_of(processor, 0.01, 0.001)
    limit_queue.needs_process = needs_process
    rings: list[float] = []
    timers = SimpleNamespace(call_after=lambda seconds, _: rings.append(seconds))
    worker: Any = SimpleNamespace(timers=timers, broker=SimpleNamespace(max_hold=lambda: 1440.0))
    turns = processor.capacity.turns
    QueueTimers(worker, turns, lambda: 0.0, lambda queues: None).set(limit_queue)
    assert rings == ([1440.0] if needs_process else [0.0])


@pytest.mark.parametrize("acquires", [False, True])
def test_queue_with_an_acquire_in_flight_reserves_a_process(processor: Any, acquires: bool) -> None:
    """Its turn is not known before the reply: a long task that started meanwhile would have the last process."""
    limit_queue = line_of(processor, 0.01)
    limit_queue.defer(held_one(0.01), NOW + 60.0)
    limit_queue.requeue_deferred()
    limit_queue.acquire = SimpleNamespace(reply=None) if acquires else None
    limit_queue.next_acquire = NOW + 60.0
    worker: Any = SimpleNamespace(
        timers=SimpleNamespace(call_after=lambda seconds, _: None), broker=SimpleNamespace(max_hold=lambda: 1440.0)
    )
    runtimes = {"task": 0.01, "long": 5.0}
    turns = ExpectedTurns(runtimes.__getitem__)
    QueueTimers(worker, turns, lambda: 0.0, lambda queues: None).set(limit_queue)
    assert turns.next_briefer("long", NOW) == (NOW if acquires else NOW + 60.0)
