"""Requests that arrive together behind parked tasks are parked by one script call."""

from __future__ import annotations

from typing import Any

import pytest

from celery_ratelimit import StoreUnavailable
from tests.parks import EMPTY
from tests.unit.worker.gate_bench import Bench, Lost


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    bench = Bench(monkeypatch)
    bench.has_parked_tasks = True
    return bench


def ends(requests: Any) -> list[str]:
    return [" ".join(request.ends) for request in requests]


def test_requests_of_a_bucket_are_parked_by_one_script(bench: Bench) -> None:
    first, second = bench.task("retry", "r1"), bench.task("retry", "r2")
    requests = bench.receive_batch([first, second, first, first])
    assert (ends(requests), bench.park_sizes) == (["parked"] * 4, [3, 1])
    bench.check_empty()


def test_single_request_is_parked_at_once(bench: Bench) -> None:
    assert ends([bench.receive(bench.task("retry", "r1"))]) == ["parked"]


def test_unlimited_task_starts_before_the_batch_is_parked(bench: Bench) -> None:
    limited, plain = bench.task("retry", "r1"), bench.task("plain")
    order: list[str] = []
    bench.on_step["park"] = [lambda: order.append("parked")]
    bench.on_step["start"] = [lambda: order.append("started")]
    assert ends(bench.receive_batch([limited, plain, limited])) == ["parked", "started", "parked"]
    assert order == ["started", "parked"]


def test_process_is_kept_for_the_next_returning_task(bench: Bench) -> None:
    """Tasks ahead of them may return to this worker: long tasks must not take all processes."""
    bench.mean_runtime = lambda name: 20.0  # type: ignore[method-assign]
    limited, plain = bench.task("retry", "r1"), bench.task("plain")
    bench.receive_batch([limited, limited])
    requests = [bench.receive(plain) for _ in range(3)]
    assert ends(requests) == ["started", "", ""]
    bench.run(0.9)
    assert ends(requests) == ["started", "", ""]
    bench.run(0.4)
    assert ends(requests) == ["started", "started", ""], "no task has returned"
    bench.finish()
    bench.run(0.03)
    assert ends(requests) == ["started", "started", "started"]


def test_empty_backlog_lets_requests_acquire(bench: Bench) -> None:
    bench.park_results = [EMPTY, EMPTY, EMPTY]
    task = bench.task("retry", "r1")
    requests = bench.receive_batch([task, task, task])
    assert ends(requests) == ["started", "parked", "parked"]
    bench.check_empty()


def test_outage_parks_no_further_buckets(bench: Bench) -> None:
    task = bench.task("retry", "r1")
    first, second = bench.task("retry", "r1"), bench.task("retry", "r2")
    bench.on_step["park"] = [StoreUnavailable("no answer")]
    requests = bench.receive_batch([first, second, second])
    assert (ends(requests), bench.park_sizes) == (["", "sent back", "sent back"], [])
    bench.check()
    bench.end_outage()
    bench.run(2.0)
    assert all(request.ends for request in requests)
    assert bench.receive(task).ends == ["parked"]


@pytest.mark.parametrize("what", [ZeroDivisionError("unforeseen"), Lost()])
def test_error_in_a_park_call_leaves_consistent_states(bench: Bench, what: Exception) -> None:
    bench.on_step["park"] = [what]
    task = bench.task("retry", "r1")
    requests = bench.receive_batch([task, task])
    bench.check()
    bench.run(1.0)
    assert ends(requests) == ["lost", "lost"] if isinstance(what, Lost) else ["parked", "parked"]
    bench.check_empty()


def test_connection_lost_while_packing_parks_nothing(bench: Bench) -> None:
    task = bench.task("retry", "r1")
    bench.on_step["pack"] = [lambda: None, Lost()]
    requests = bench.receive_batch([task, task, task])
    assert (ends(requests), bench.park_sizes) == (["lost"] * 3, [])
    bench.check_empty()


def test_error_in_dispatch_does_not_block_parking(bench: Bench) -> None:
    scheduler: Any = bench.gate._scheduler
    run = scheduler.dispatch

    def run_and_raise(queues: Any = ()) -> None:
        scheduler.dispatch = run
        run(queues)
        raise ZeroDivisionError("unforeseen")

    task = bench.task("retry", "r1")
    scheduler.dispatch = run_and_raise
    assert ends(bench.receive_batch([task, task])) == ["parked", "parked"]
