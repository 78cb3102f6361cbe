"""Those that come in together and stand behind others are parked together, and whatever is in between is as it was."""

from __future__ import annotations

from typing import Any

import pytest

from celery_ratelimit import StoreUnavailable
from tests.parks import EMPTY
from tests.unit.worker.gate_bench import Bench, Lost


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    bench = Bench(monkeypatch)
    bench.is_somebody_parked = True
    return bench


def ends(requests: Any) -> list[str]:
    return [" ".join(request.ends) for request in requests]


def test_requests_of_a_bucket_are_parked_by_one_script(bench: Bench) -> None:
    first, second = bench.task("retry", "r1"), bench.task("retry", "r2")
    requests = bench.together([first, second, first, first])
    assert (ends(requests), bench.together_parked) == (["parked"] * 4, [3, 1])
    bench.check_empty()


def test_single_request_is_parked_at_once(bench: Bench) -> None:
    assert ends([bench.come(bench.task("retry", "r1"))]) == ["parked"]


def test_unlimited_task_starts_before_the_batch_is_parked(bench: Bench) -> None:
    limited, plain = bench.task("retry", "r1"), bench.task("plain")
    order: list[str] = []
    bench.at["park"] = [lambda: order.append("parked")]
    bench.at["start"] = [lambda: order.append("started")]
    assert ends(bench.together([limited, plain, limited])) == ["parked", "started", "parked"]
    assert order == ["started", "parked"]


def test_process_is_kept_for_the_next_returning_task(bench: Bench) -> None:
    """Others stand before them, who may come back to this worker as well: long tasks are not to have all processes."""
    bench.mean_runtime = lambda name: 20.0  # type: ignore[method-assign]
    limited, plain = bench.task("retry", "r1"), bench.task("plain")
    bench.together([limited, limited])
    requests = [bench.come(plain) for _ in range(3)]
    assert ends(requests) == ["started", "", ""]
    bench.run(0.9)
    assert ends(requests) == ["started", "", ""]
    bench.run(0.4)
    assert ends(requests) == ["started", "started", ""], "nobody has come"
    bench.finish()
    bench.run(0.03)
    assert ends(requests) == ["started", "started", "started"]


def test_who_finds_nobody_there_asks(bench: Bench) -> None:
    bench.admission = [EMPTY, EMPTY, EMPTY]
    task = bench.task("retry", "r1")
    requests = bench.together([task, task, task])
    assert ends(requests) == ["started", "parked", "parked"]
    bench.check_empty()


def test_outage_parks_no_further_buckets(bench: Bench) -> None:
    task = bench.task("retry", "r1")
    first, second = bench.task("retry", "r1"), bench.task("retry", "r2")
    bench.at["park"] = [StoreUnavailable("no answer")]
    requests = bench.together([first, second, second])
    assert (ends(requests), bench.together_parked) == (["", "sent back", "sent back"], [])
    bench.check()
    bench.dedup_and_acquire()
    bench.run(2.0)
    assert all(request.ends for request in requests)
    assert bench.come(task).ends == ["parked"]


@pytest.mark.parametrize("what", [ZeroDivisionError("unforeseen"), Lost()])
def test_error_in_a_park_call_leaves_consistent_states(bench: Bench, what: Exception) -> None:
    bench.at["park"] = [what]
    task = bench.task("retry", "r1")
    requests = bench.together([task, task])
    bench.check()
    bench.run(1.0)
    assert ends(requests) == ["lost", "lost"] if isinstance(what, Lost) else ["parked", "parked"]
    bench.check_empty()


def test_connection_lost_while_packing_parks_nothing(bench: Bench) -> None:
    task = bench.task("retry", "r1")
    bench.at["pack"] = [lambda: None, Lost()]
    requests = bench.together([task, task, task])
    assert (ends(requests), bench.together_parked) == (["lost"] * 3, [])
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
    assert ends(bench.together([task, task])) == ["parked", "parked"]
