"""Requests that acquire with one script call: returning tasks, and turns of a distant store."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.worker.gate_bench import Bench, ends


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(monkeypatch, processes=8)


def receive_returning(bench: Bench, task: Any, number: int, *, ahead: float = 0.05) -> list[Any]:
    """Receive tasks whose turns are 10 ms apart; the first is ``ahead`` seconds from now."""
    requests = []
    for index in range(number):
        bench.gate._capacity.turns.expect(f"back-{index}", "task", bench.now + ahead + 0.01 * index, bench.now)
        requests.append(bench.receive(task, f"back-{index}", returned=True))
    return requests


def test_returning_tasks_acquire_together_shortly_before_the_first_turn(bench: Bench) -> None:
    bench.tats["r1"] = bench.now - 5.0
    requests = receive_returning(bench, bench.task("retry", "r1"), 4)
    assert bench.acquire_sizes == []
    bench.run(0.031)  # twenty milliseconds before the first one's turn
    assert bench.acquire_sizes[0] == 4
    bench.run(1.0)
    assert ends(requests) == ["started"] * 4


@pytest.mark.parametrize("ahead", [-0.05, 600.0], ids=["late", "long before its turn"])
def test_returning_task_far_from_its_turn_acquires_at_once(bench: Bench, ahead: float) -> None:
    receive_returning(bench, bench.task("retry", "r1"), 1, ahead=ahead)
    assert bench.acquire_sizes == [1]


def test_a_batch_stops_at_the_first_refusal(bench: Bench) -> None:
    bench.tats["r1"] = bench.now - 0.1  # two permits, and then none for a tenth of a second
    requests = receive_returning(bench, bench.task("retry", "r1"), 4)
    bench.run(0.031)
    assert bench.acquire_sizes[0] == 4
    assert ends(requests).count("started") == 1
    bench.run(2.0)
    assert ends(requests) == ["started"] * 4


@pytest.mark.parametrize(
    ("round_trip", "size"),
    [(0.0, 1), (0.025, 3)],  # 0.25 seconds, and 0.1 from one to the next
)
def test_queue_acquires_the_turns_of_ten_round_trips(bench: Bench, round_trip: float, size: int) -> None:
    bench.tats["r1"] = bench.now + 0.5
    task = bench.task("wait", "r1")
    for _ in range(5):
        bench.receive(task)
    bench.gate._store_calls.latency.round_trip = round_trip
    bench.run(0.5)
    assert max(bench.acquire_sizes) == size
    bench.run(1.0)
    assert ends(bench.requests) == ["started"] * 5


def test_very_distant_store_is_not_called_before_it_can_grant(bench: Bench) -> None:
    """Or it would say no, and be asked again at once."""
    bench.tats["r1"] = bench.now + 2.0
    bench.gate._store_calls.latency.round_trip = 0.5
    bench.receive(bench.task("wait", "r1"))
    bench.run(2.1)
    assert len(bench.acquire_sizes) <= 3


def test_lease_is_acquired_when_it_is_used(bench: Bench) -> None:
    receive_returning(bench, bench.task("retry", "p1"), 3)
    bench.run(0.1)
    assert set(bench.acquire_sizes) == {1}
    bench.finish()


def test_revoked_request_leaves_the_batch(bench: Bench) -> None:
    bench.tats["r1"] = bench.now - 5.0
    requests = receive_returning(bench, bench.task("retry", "r1"), 3)
    requests[1].is_revoked = True
    bench.run(0.031)
    assert (bench.acquire_sizes, requests[1].ends) == ([2], ["revoked"])


def test_error_of_one_request_of_a_batch_fails_it_alone(bench: Bench) -> None:
    bench.tats["r1"] = bench.now - 5.0
    requests = receive_returning(bench, bench.task("retry", "r1"), 3)
    bench.on_step["start"] = [lambda: None, ZeroDivisionError("unforeseen")]
    bench.run(2.0)
    assert sorted(request.ends[-1] for request in requests) == ["failed", "started", "started"]
    bench.check()


@pytest.mark.parametrize(("closed", "end"), [(0.01, None), (0.5, "parked")])
def test_new_request_without_a_free_process_reserves_no_slot(bench: Bench, closed: float, end: str | None) -> None:
    """It waits, or is parked where its limit is closed for longer than it may be held."""
    bench.processes, bench.mean_runtime = 1, lambda name: 5.0  # type: ignore[method-assign]
    task = bench.task("retry", "r1")
    bench.receive(task)
    bench.tats["r1"] = bench.now + 0.01
    bench.receive(task)
    (limit_queue,) = bench.gate._queues
    limit_queue.closed_until, asked = bench.now + closed, len(bench.acquire_sizes)
    newcomer = bench.receive(task)
    assert len(bench.acquire_sizes) == asked
    assert [*newcomer.ends][-1:] == ([end] if end else [])
    bench.finish()
    bench.run(5.0)
    bench.check()
