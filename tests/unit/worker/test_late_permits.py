"""Permits that the gate uses late, or discards."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from celery_ratelimit.worker import queue_processor, request_queues
from celery_ratelimit.worker.capacity import PoolCapacity
from celery_ratelimit.worker.expected_turns import ExpectedTurns
from celery_ratelimit.worker.next_action import Start
from celery_ratelimit.worker.pool_scheduler import PoolScheduler
from celery_ratelimit.worker.queue_processor import QueueProcessor
from celery_ratelimit.worker.request import PendingRequest, State
from celery_ratelimit.worker.request_queue import LimitQueue
from celery_ratelimit.worker.request_queues import QueueTimers
from celery_ratelimit.worker.request_resources import RequestResources

NOW = 100.0


def held_one(interval: float) -> Any:
    message = SimpleNamespace(headers={}, delivery_info={}, properties={})
    request: Any = SimpleNamespace(
        id="1", name="task", task=SimpleNamespace(name="task"), message=message, request_dict={}, delivery_info={}
    )
    pending: Any = object.__new__(PendingRequest)
    pending.request, pending.demands = request, (SimpleNamespace(interval=interval),)
    pending.plan, pending.has_reservation = SimpleNamespace(leased=False), True
    pending.state, pending.at, pending.release_deadline = State.QUEUED, 0.0, NOW + 1e6
    return pending


class Worker:
    """The part of a worker that starts requests: before a pool with room, at ``NOW``."""

    def __init__(self) -> None:
        nothing: Any = None
        pool: Any = SimpleNamespace(idle=lambda pending: 8, mean_runtime=lambda name: 1.0)
        prefetch: Any = SimpleNamespace(leave=lambda pending: None)
        actions: Any = self
        errors: Any = SimpleNamespace(pair=None)
        self.capacity = PoolCapacity(pool)
        self.resources = RequestResources(nothing, nothing, self.capacity, prefetch, nothing)
        pool_scheduler = PoolScheduler(nothing, self.capacity, nothing, prefetch, nothing, nothing)
        self.processor = QueueProcessor(
            *(nothing, self.resources, pool_scheduler, nothing, actions, nothing, errors, nothing)
        )
        self.started: list[float] = []  # how late

    def apply(self, limit_queue: LimitQueue, pending: PendingRequest, action: Any, now: float) -> bool:
        """In the place of ``Actions.apply``."""
        assert isinstance(action, Start)
        self.resources.leave(limit_queue, pending, starts=True)
        self.started.append(round(now - pending.at, 3))
        return True

    def queue_of(self, interval: float, *lates: float) -> LimitQueue:
        limit_queue = LimitQueue()
        for late in lates:
            limit_queue.grant(held_one(interval), NOW - late, 1)
            self.capacity.reservations.add(NOW - late, "task")
        return limit_queue


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Worker:
    for each in (request_queues, queue_processor):
        monkeypatch.setattr(each, "monotonic", lambda: NOW)
    return Worker()


@pytest.mark.parametrize(
    ("interval", "lates", "deferred", "started"),
    [
        (0.01, [0.0], [], [0.0]),
        (0.01, [0.09], [], [0.09]),  # waited for a process, alone
        (0.01, [0.11], [], []),
        (0.01, [0.07, 0.06, 0.05, 0.03, 0.02, 0.01], [], [0.03, 0.02, 0.01]),  # the machine did something else
        (0.01, [0.09, -0.01], [], [0.09]),  # the other one is not due
        (0.01, [0.3, 0.2, 0.09], [], [0.09]),
        (0.01, [0.06], [0.05], [0.06]),  # a deferred request has no permit
        (0.5, [0.45, 0.02], [], [0.45, 0.02]),  # less than an interval late
    ],
)
def test_only_the_latest_of_several_late_permits_are_used(
    worker: Worker, interval: float, lates: list[float], deferred: list[float], started: list[float]
) -> None:
    limit_queue = worker.queue_of(interval, *lates)
    for late in deferred:
        limit_queue.defer(held_one(interval), NOW - late)
    worker.processor._start_due(limit_queue)
    assert worker.started == started
    asks_again = [round(NOW - pending.at, 3) for pending in limit_queue.reserved]
    assert asks_again == [late for late in lates + deferred if late >= 0 and late not in started], "in their order"
    unused = sum(late < 0 for late in lates)
    assert worker.capacity.reservations.by(NOW + 1) == unused, "those that were not used are forgotten"


def set_timer(limit_queue: LimitQueue, turns: ExpectedTurns) -> list[float]:
    """Set the timer of a queue; in how many seconds it fires."""
    fires: list[float] = []
    timers = SimpleNamespace(call_after=lambda seconds, _: fires.append(seconds))
    worker: Any = SimpleNamespace(timers=timers, broker=SimpleNamespace(max_hold=lambda: 1440.0))
    QueueTimers(worker, turns, lambda: 0.0, lambda queues: None).set(limit_queue)
    return fires


@pytest.mark.parametrize(("needs_process", "seconds"), [(False, 0.0), (True, 1440.0)])
def test_overdue_request_gets_an_immediate_timer(worker: Worker, needs_process: bool, seconds: float) -> None:
    """It was not due when the line looked, and is when the timer is set. If the line wants a process, that is known."""
    limit_queue = worker.queue_of(0.01, 0.001)
    limit_queue.needs_process = needs_process
    assert set_timer(limit_queue, worker.capacity.turns) == [seconds]


@pytest.mark.parametrize("acquires", [False, True])
def test_queue_with_an_acquire_in_flight_reserves_a_process(worker: Worker, acquires: bool) -> None:
    """Its turn is not known before the reply: a long task that started meanwhile would have the last process."""
    limit_queue = worker.queue_of(0.01)
    limit_queue.defer(held_one(0.01), NOW + 60.0)
    limit_queue.requeue_deferred()
    call: Any = SimpleNamespace(reply=None)
    limit_queue.acquire, limit_queue.next_acquire = call if acquires else None, NOW + 60.0
    turns = ExpectedTurns({"task": 0.01, "long": 5.0}.__getitem__)
    set_timer(limit_queue, turns)
    assert turns.next_briefer("long", NOW) == (NOW if acquires else NOW + 60.0)
