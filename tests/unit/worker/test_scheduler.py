"""The end of a task moves the queues that wait for its process or its lease."""

from __future__ import annotations

from typing import Any

import pytest

from celery_ratelimit.worker.request_queue import LimitQueue
from tests.unit.worker.gate_bench import Bench

QUEUES = 20


@pytest.fixture
def moved() -> list[LimitQueue]:
    """The queues that the scheduler has moved on."""
    return []


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, moved: list[LimitQueue]) -> Bench:
    """A gate with requests of many queues that wait for a time, and one running task with a lease."""
    bench = Bench(monkeypatch)
    bench.receive(bench.task("wait", "p1"))
    for number in range(QUEUES):
        bench.tats[f"r{number}"] = bench.now + 1000.0
        bench.receive(bench.task("wait", f"r{number}"))
    scheduler: Any = bench.gate._scheduler
    move = scheduler._move
    scheduler._move = lambda limit_queue: (moved.append(limit_queue), move(limit_queue))
    return bench


def test_end_of_a_task_moves_no_queue_that_waits_for_a_time(bench: Bench, moved: list[LimitQueue]) -> None:
    assert len(list(bench.gate._queues)) == QUEUES
    bench.finish()
    assert moved == []


def test_end_of_a_task_moves_a_queue_that_needs_a_process(bench: Bench, moved: list[LimitQueue]) -> None:
    needs_process = list(bench.gate._queues)[7]
    needs_process.needs_process = True
    bench.gate._queues.update_need(needs_process)
    bench.finish()
    assert moved == [needs_process]


def test_end_of_a_task_moves_the_queue_of_its_lease(bench: Bench, moved: list[LimitQueue]) -> None:
    bench.processes = 4
    bench.receive(bench.task("wait", "p1"))
    waiting = bench.receive(bench.task("wait", "p1"))
    moved.clear()
    bench.finish()
    assert [limit_queue.key for limit_queue in moved] == [(("p1", ""),)]
    assert waiting.ends == ["started"], "it acquires before its next poll"


def test_queue_cleared_while_it_moves_needs_no_process(bench: Bench) -> None:
    """A greenlet may close the gate while another one waits for the reply of the store."""
    scheduler: Any = bench.gate._scheduler
    limit_queue = next(iter(bench.gate._queues))

    def move_on(limit_queue: LimitQueue) -> None:
        limit_queue.needs_process = True
        bench.gate._queues.clear()

    scheduler._processor.move_on = move_on
    scheduler._move(limit_queue)
    assert not bench.gate._queues.needing_process


def test_empty_queue_ends_while_all_processes_are_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its only request failed by an unexpected error, after it had begun to wait for a process."""
    bench = Bench(monkeypatch, processes=1)
    bench.mean_runtime = lambda name: 60.0  # type: ignore[method-assign]
    bench.receive(bench.task("retry"))
    waiting = bench.receive(bench.task("wait", "r1"))
    bench.run(1.0)
    assert list(bench.gate._queues.needing_process) == [(("r1", ""),)]
    bench.gate.on_error(waiting, ZeroDivisionError("unexpected"))
    bench.run(0.2)
    assert not bench.gate._queues.needing_process
    assert not list(bench.gate._queues)
