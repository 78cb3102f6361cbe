"""Flow control: waiting requests widen the prefetch, a late worker stops receiving, a saturated one returns tasks."""

from __future__ import annotations

import pytest

from tests.unit.worker.gate_bench import Bench, ends


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(monkeypatch)


def test_waiting_requests_widen_the_prefetch_after_a_first_grant(bench: Bench) -> None:
    bench.prefetch_is_full = False  # type: ignore[misc]
    task = bench.task("wait", "r1")
    assert bench.receive(task).ends == ["started"], "the limit is open"
    for _ in range(2):
        bench.receive(bench.task("plain"), queue="other")
    assert ends([bench.receive(task) for _ in range(6)]) == [""] * 6
    assert bench.widened >= 4, "except for the requests that start in a moment"
    bench.check()


def test_request_waiting_for_a_process_does_not_widen_the_prefetch(bench: Bench) -> None:
    bench.prefetch_is_full = False  # type: ignore[misc]
    requests = [bench.receive(bench.task(*task)) for task in (["plain"], ["plain"], ["wait", "r1"])]
    assert (ends(requests)[-1], bench.widened) == ("", 0)


@pytest.mark.parametrize(("runtime", "is_late"), [(0.05, False), (0.002, True)])
def test_worker_is_late_when_a_brief_task_has_not_been_followed(bench: Bench, runtime: float, is_late: bool) -> None:
    """The process has ended, or does in a moment: the worker hears of it when it has nothing else to do."""
    bench.processes, bench.mean_runtime = 1, lambda name: runtime  # type: ignore[method-assign]
    bench.receive(bench.task("unlimited"))
    bench.tats["r1"] = bench.now - 5.0
    request = bench.receive(bench.task("retry", "r1"), "back", returned=True)
    assert (request.ends, bench.is_late()) == ([], False)
    bench.run(0.02)
    assert bench.is_late() is is_late, "else it is the pool that is busy"
    bench.finish()
    assert (request.ends, bench.is_late()) == (["started"], False)


# -- All processes run long tasks --------------------------------------------------------------------------------------


def fill_with_long_tasks(bench: Bench) -> None:
    bench.mean_runtime = lambda name: 5.0  # type: ignore[method-assign]
    for _ in range(bench.processes):
        assert bench.receive(bench.task("plain")).ends == ["started"]


def test_return_queues_pause_while_all_processes_run_long_tasks(bench: Bench) -> None:
    bench.mean_runtime = lambda name: 5.0  # type: ignore[method-assign]
    bench.receive(bench.task("plain"))
    assert not bench.paused
    bench.receive(bench.task("plain"))
    assert bench.paused
    bench.finish()
    assert not bench.paused
    bench.mean_runtime = lambda name: 0.5  # type: ignore[method-assign]
    bench.receive(bench.task("plain"))
    assert not bench.paused, "short tasks"


def test_single_worker_never_pauses_its_return_queues(bench: Bench) -> None:
    bench.workers = 1
    fill_with_long_tasks(bench)
    assert not bench.paused
    came = bench.receive(bench.task("retry", "r1"), via_return_queue=True)
    assert came.ends == []
    bench.finish()
    assert came.ends == ["started"]


def test_returning_task_is_sent_back_to_other_workers(bench: Bench) -> None:
    """The next worker asks the store whether this copy may run."""
    fill_with_long_tasks(bench)
    bench.on_step["may run"] = [AssertionError("the store was asked")]
    for task in (bench.task("retry", "r1"), bench.task("wait", "r2")):
        assert bench.receive(task, via_return_queue=True).ends == ["sent back"]
    bench.check()


def test_returning_task_is_kept_until_the_broker_confirms_the_pause(bench: Bench) -> None:
    """Else the broker would deliver it here again."""
    bench.pauses_late = True
    fill_with_long_tasks(bench)
    bench.receive(bench.task("wait", "r1"), via_return_queue=True)  # has a permit
    came = bench.receive(bench.task("wait", "r1"), via_return_queue=True)
    assert came.ends == []
    bench.then()
    bench.run(0.01)
    assert came.ends == ["sent back"]
    bench.check()


def test_returning_task_starts_if_a_process_is_free_before_the_pause(bench: Bench) -> None:
    fill_with_long_tasks(bench)
    bench.finish()
    bench.run(0.03)
    bench.pauses_late = True
    bench.receive(bench.task("plain"))
    assert bench.paused
    came = bench.receive(bench.task("wait", "r1"), via_return_queue=True)
    bench.finish()
    bench.run(0.03)
    assert came.ends == ["started"]


def test_task_of_an_ordinary_queue_stays(bench: Bench) -> None:
    fill_with_long_tasks(bench)
    requests = [bench.receive(bench.task("wait", "r1")), bench.receive(bench.task("retry", "r2"), returned=True)]
    assert ends(requests) == ["", ""]
    for _ in range(2):
        bench.finish()
        bench.run(0.2)
    assert ends(requests) == ["started", "started"]


def test_granted_task_is_not_sent_back(bench: Bench) -> None:
    bench.tats["r1"] = bench.now + 0.05
    waits = bench.receive(bench.task("retry", "r1"), via_return_queue=True)
    bench.processes, bench.mean_runtime = 1, lambda name: 5.0  # type: ignore[method-assign]
    bench.receive(bench.task("plain"))
    bench.run(0.06)
    assert waits.ends == ["started"]


@pytest.mark.parametrize("returns", [False, True])
def test_freed_process_is_offered_to_returning_tasks_first(bench: Bench, returns: bool) -> None:
    bench.processes = 1
    fill_with_long_tasks(bench)
    plain = bench.receive(bench.task("plain"))
    bench.finish()
    assert plain.ends == []
    if returns:
        assert bench.receive(bench.task("retry", "r1"), via_return_queue=True).ends == ["started"]
    bench.run(0.03)
    assert plain.ends == ([] if returns else ["started"])


def test_worker_that_keeps_its_only_process_returns_long_tasks(bench: Bench) -> None:
    """Other workers have free processes for them."""
    bench.processes, bench.keeps_only_process = 1, True
    brief, retry, wait = bench.task("retry", "r1"), bench.task("retry", "r2"), bench.task("wait", "r3")
    bench.runtimes = {retry.name: 3.0, wait.name: 3.0}
    bench.tats["r1"] = bench.now + 1.0
    brief_one = bench.receive(brief, via_return_queue=True)
    returned, new, waits = bench.receive(retry, via_return_queue=True), bench.receive(retry), bench.receive(wait)
    assert [returned.ends, new.ends, waits.ends] == [["sent back"], [], []]
    bench.run(0.6)
    assert new.ends == [], "the two workers end two in three seconds; twice as often one is offered"
    bench.run(0.3)
    assert [new.ends, waits.ends] == [["sent back"], []]
    bench.run(0.2)
    assert brief_one.ends == ["started"]
    bench.check()
