"""The end of a task moves the queues that wait for its process or its lease."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from celery_ratelimit.worker.capacity import PoolCapacity
from celery_ratelimit.worker.gate import Gate
from celery_ratelimit.worker.pool_scheduler import PoolScheduler
from celery_ratelimit.worker.reporting import Reporter
from celery_ratelimit.worker.request_queue import LimitQueue
from celery_ratelimit.worker.request_queues import RequestQueues
from celery_ratelimit.worker.scheduler import Scheduler
from tests.unit.worker.gate_bench import Bench

TENANTS = 500


class Batch:
    """Nothing is to be parked."""

    def __len__(self) -> int:
        return 0

    def flush(self, *_: Any) -> None: ...


@pytest.fixture
def gate() -> Any:
    """A gate that holds one request of each of many lines; ``gate.moved`` are those that were moved on."""
    gate: Any = object.__new__(Gate)
    scheduler: Any = object.__new__(Scheduler)
    pool = SimpleNamespace(
        idle=lambda pending: 1, mean_runtime=lambda name: 1.0, processes=4, may_free=lambda *_: False, has_queue=True
    )
    worker: Any = SimpleNamespace(
        is_stopping=False,
        pool=pool,
        timers=SimpleNamespace(call_after=lambda *_: None),
        bulk_receive=SimpleNamespace(receiving=False),
        autoscaling=SimpleNamespace(update=lambda: None),
    )
    capacity = PoolCapacity(pool)  # type: ignore[arg-type]
    gate._queues = scheduler._queues = queues = RequestQueues()
    for number in range(TENANTS):
        queues.get_or_create(((f"tenant {number}", ""),))
    gate._prefetch = SimpleNamespace(limited=TENANTS)
    gate._pool_scheduler = scheduler._pool_scheduler = PoolScheduler(
        worker, capacity, queues, gate._prefetch, Reporter(), lambda: None
    )
    gate._return_queues = scheduler._return_queues = SimpleNamespace(update=lambda now: None)
    leases = SimpleNamespace(end=lambda request: gate.ran.get(request), release_ended=lambda: None)
    gate._concurrency = scheduler._concurrency = leases
    gate._scheduler, scheduler._worker, scheduler._capacity = scheduler, worker, capacity
    scheduler._ready, scheduler._batch, scheduler._processor = {}, Batch(), SimpleNamespace(on_parked=None)
    scheduler._changed, scheduler._is_running, scheduler._again, scheduler._cancel_poll = set(), False, False, None
    gate.moved, gate.ran = [], {}
    scheduler._move = gate.moved.append
    return gate


def test_end_of_a_task_moves_no_queue_that_waits_for_a_time(gate: Any) -> None:
    gate.on_end(object())
    assert gate.moved == []


def test_end_of_a_task_moves_a_queue_that_needs_a_process(gate: Any) -> None:
    needs_process = list(gate._queues)[7]
    needs_process.needs_process = True
    gate._queues.update_need(needs_process)
    gate.on_end(object())
    assert gate.moved == [needs_process]


def test_end_of_a_task_moves_the_queue_of_its_lease(gate: Any) -> None:
    asks = list(gate._queues)[3]
    request = object()
    gate.ran[request] = SimpleNamespace(demands=(), plan=SimpleNamespace(buckets=lambda demands: asks.key))
    asks.next_acquire = 1e9
    gate.on_end(request)
    assert gate.moved == [asks]
    assert asks.next_acquire == 0.0, "whenever it was to ask again"


def test_queue_cleared_while_it_moves_needs_no_process(gate: Any) -> None:
    """Greenlets let others in while they wait for the store's answer: also whoever closes the gate."""
    ended = next(iter(gate._queues))
    ended.new.append(SimpleNamespace(until=1e9, number=0))

    def lose_the_connection(limit_queue: LimitQueue) -> None:
        limit_queue.needs_process = True
        gate._queues.clear()

    gate._scheduler._processor = SimpleNamespace(move_on=lose_the_connection)
    gate._scheduler._timers = SimpleNamespace(set=lambda limit_queue: None)
    Scheduler._move(gate._scheduler, ended)
    assert not gate._queues.needing_process


def test_empty_queue_ends_while_all_processes_are_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its only request ended by an unforeseen error, after it had begun to wait for a process."""
    bench = Bench(monkeypatch, processes=1)
    bench.mean_runtime = lambda name: 60.0  # type: ignore[method-assign]
    bench.receive(bench.task("retry"))
    waiting = bench.receive(bench.task("wait", "r1"))
    bench.run(1.0)
    assert list(bench.gate._queues.needing_process) == [(("r1", ""),)]
    bench.gate.on_error(waiting, ZeroDivisionError("unforeseen"))
    bench.run(0.2)
    assert not bench.gate._queues.needing_process
    assert not list(bench.gate._queues)
