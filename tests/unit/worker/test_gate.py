"""The gate after errors and lost connections, for expired requests, and at the end of a task."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from celery_ratelimit.worker.request import State
from celery_ratelimit.worker.request_queue import LimitQueue
from tests.unit.worker.gate_bench import Bench, Lost, Request, ends


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(monkeypatch)


def one_with_permit(bench: Bench, *names: str) -> Any:
    """It has a permit that is good in a moment."""
    bench.tats["r1"] = bench.now + 0.05
    request = bench.receive(bench.task("wait", "r1", *names))
    bench.run(0.04)
    assert [pending.state for _, pending in bench.pending()] == [State.GRANTED]
    return request


def test_error_while_a_granted_task_starts_fails_it_alone(bench: Bench) -> None:
    """It has expired, and its result backend raises what it likes."""
    requests = [one_with_permit(bench), *(bench.receive(bench.task("wait", "r1")) for _ in range(2))]
    bench.on_step["revoked"] = [ZeroDivisionError("no backend")]
    bench.run(1.0)
    assert ends(requests) == ["failed", "started", "started"]


def test_error_in_acquire_and_in_drop_slot_fails_one_task(bench: Bench) -> None:
    """A task without a reply cannot drop its slot either."""
    bench.tats["r1"] = bench.now + 5.0
    requests = [bench.receive(bench.task("wait", "r1")) for _ in range(3)]
    bench.on_step["ask"] = [ZeroDivisionError("at both")]
    bench.on_step["forget"] = [ZeroDivisionError("at both")]
    bench.run(6.0)
    assert ends(requests) == ["failed", "started", "started"]


def test_error_after_the_acknowledgement_does_not_fail_the_task(bench: Bench) -> None:
    request = bench.receive(bench.task("plain"))
    request.acknowledged = True
    bench.gate.on_error(request, ZeroDivisionError("unexpected"))
    assert request.ends == ["started"]


@pytest.mark.parametrize("lose", [False, True])
def test_unused_lease_is_released_while_its_task_waits_for_a_process(bench: Bench, lose: bool) -> None:
    one_with_permit(bench, "p1")
    assert bench.leases_of["p1"], "it has a lease"
    for _ in range(bench.processes):
        bench.running[object()] = bench.now  # type: ignore[index]  # long tasks of others
    bench.run(0.5)
    assert [pending.state for _, pending in bench.pending()] == [State.QUEUED]
    assert not bench.leases_of["p1"]
    if lose:
        bench.lose_connection()
    assert not bench.kept


@pytest.mark.parametrize("wait", [0.0, 0.015])
@pytest.mark.parametrize(
    ("kind", "step"),
    [("retry", "ask"), ("wait", "ask"), ("retry", "revoked"), ("wait", "revoked"), ("retry", "may run")],
)
def test_connection_lost_during_a_step_leaves_nothing(bench: Bench, kind: str, step: str, wait: float) -> None:
    """A greenlet waits for the store while another one closes the gate."""
    bench.tats["r1"] = bench.now + wait
    bench.on_step[step] = [bench.lose_connection]
    request = bench.receive(bench.task(kind, "r1", "p1"))
    bench.run(1.0)
    assert request.ends == ["lost"], "the broker hands it out anew"
    bench.check_empty()


@pytest.mark.parametrize("is_granted_ahead", [False, True])
def test_connection_lost_at_the_turn_of_a_leased_task_leaves_nothing(bench: Bench, is_granted_ahead: bool) -> None:
    """The task was revoked, which the broker could not be told; or another greenlet closes the gate."""
    if is_granted_ahead:
        one_with_permit(bench, "p1")
        bench.on_step["revoked"] = [bench.lose_connection]
        bench.run(1.0)
    else:
        bench.on_step["ask"] = [lambda: bench.on_step.update(revoked=[Lost()])]
        bench.receive(bench.task("wait", "p1"))
    assert ends(bench.requests) == ["lost"]
    bench.check_empty()


def test_expired_requests_end_behind_a_request_that_still_waits(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The queue is not looked at otherwise before its turn."""
    task = bench.task("wait", "r1")
    bench.tats["r1"] = bench.now + 1000.0
    patient, expiring = bench.receive(task), []
    for seconds in (0, 3600, 0):
        monkeypatch.setattr(Request, "expires", datetime.now(timezone.utc) + timedelta(seconds=seconds))
        expiring.append(bench.receive(task))
        expiring[-1].is_revoked = seconds == 0
    asked = len(bench.acquire_sizes)
    bench.run(1.0)
    assert ends([patient, *expiring]) == ["", "revoked", "", "revoked"]
    assert len(bench.acquire_sizes) == asked, "the store is not asked for it"


def test_process_is_reserved_only_for_a_granted_permit(bench: Bench) -> None:
    plain = bench.task("plain")
    bench.tats["r1"] = bench.now + 0.1
    limited = bench.receive(bench.task("wait", "r1"))
    waits = [bench.receive(plain) for _ in range(3)][-1]  # for a process, and takes 50 ms
    assert not waits.ends
    bench.tats["r1"] += 0.1  # the turn is another worker's
    bench.run(0.074)  # near enough to it that a process would be kept
    bench.finish()
    assert waits.ends == ["started"]
    last = bench.receive(plain)
    bench.run(0.102)  # near enough to the next one
    bench.finish()
    bench.run(0.0)
    assert last.ends == [], "the process is kept for the permit"
    bench.run(0.025)
    assert limited.ends == ["started"]


# -- The end of a task moves the queues that wait for its process or its lease -----------------------------------------


QUEUES = 20


@pytest.fixture
def moved(bench: Bench) -> list[LimitQueue]:
    """The queues that move: requests of many queues wait for a time, and a task with a lease runs."""
    bench.receive(bench.task("wait", "p1"))
    for number in range(QUEUES):
        bench.tats[f"r{number}"] = bench.now + 1000.0
        bench.receive(bench.task("wait", f"r{number}"))
    moved: list[LimitQueue] = []
    scheduler: Any = bench.gate._scheduler
    move = scheduler._move
    scheduler._move = lambda limit_queue: (moved.append(limit_queue), move(limit_queue))
    return moved


def test_end_of_a_task_moves_only_queues_that_need_a_process(bench: Bench, moved: list[LimitQueue]) -> None:
    queues = list(bench.gate._queues)
    assert len(queues) == QUEUES
    queues[7].needs_process = True
    bench.gate._queues.update_need(queues[7])
    bench.finish()
    assert moved == [queues[7]]


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
    one_with_permit(bench)
    scheduler: Any = bench.gate._scheduler
    (limit_queue,) = bench.gate._queues

    def move_on(limit_queue: LimitQueue) -> None:
        limit_queue.needs_process = True
        bench.gate._queues.clear()

    scheduler._processor.move_on = move_on
    scheduler._move(limit_queue)
    assert not bench.gate._queues.needing_process


def test_empty_queue_ends_while_all_processes_are_busy(bench: Bench) -> None:
    """Its only request failed by an unexpected error, after it had begun to wait for a process."""
    bench.processes, bench.mean_runtime = 1, lambda name: 60.0  # type: ignore[method-assign]
    bench.receive(bench.task("retry"))
    waiting = bench.receive(bench.task("wait", "r1"))
    bench.run(1.0)
    assert list(bench.gate._queues.needing_process) == [(("r1", ""),)]
    bench.gate.on_error(waiting, ZeroDivisionError("unexpected"))
    bench.run(0.2)
    assert not bench.gate._queues.needing_process
    assert not list(bench.gate._queues)
