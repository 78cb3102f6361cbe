"""Flow control: waiting requests widen the prefetch, and a late worker stops receiving."""

from __future__ import annotations

import pytest

from tests.unit.worker.gate_bench import Bench


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    bench = Bench(monkeypatch)
    bench.prefetch_is_full = False  # type: ignore[misc]
    return bench


def test_waiting_requests_widen_the_prefetch_after_a_first_grant(bench: Bench) -> None:
    task = bench.task("wait", "r1")
    assert bench.receive(task).ends == ["started"], "the limit is open"
    for _ in range(2):
        bench.receive(bench.task("plain"), queue="other")
    waiting = [bench.receive(task) for _ in range(6)]
    assert [request.ends for request in waiting] == [[]] * 6
    assert bench.widened >= 4, "except for the requests that start in a moment"
    bench.check()


def test_request_waiting_for_a_process_does_not_widen_the_prefetch(bench: Bench) -> None:
    bench.receive(bench.task("plain"))
    bench.receive(bench.task("plain"))
    assert bench.receive(bench.task("wait", "r1")).ends == []
    assert bench.widened == 0


def test_busy_pool_does_not_make_the_worker_late(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, processes=1)
    bench.receive(bench.task("unlimited"))
    bench.tats["r1"] = bench.now - 5.0
    request = bench.receive(bench.task("retry", "r1"), "back", returned=True)
    assert request.ends == []
    assert not bench.is_late()
    bench.run(0.02)
    assert not bench.is_late(), "it is the pool that is busy"
    bench.finish()
    assert request.ends == ["started"]
    assert not bench.is_late()


def test_worker_is_late_when_a_brief_task_has_not_been_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process has ended, or does in a moment: the worker hears of it when it has nothing else to do."""
    bench = Bench(monkeypatch, processes=1)
    bench.mean_runtime = lambda name: 0.002  # type: ignore[method-assign]
    bench.receive(bench.task("unlimited"))
    bench.tats["r1"] = bench.now - 5.0
    request = bench.receive(bench.task("retry", "r1"), "back", returned=True)
    assert (request.ends, bench.is_late()) == ([], False)
    bench.run(0.006)
    assert bench.is_late()
    bench.finish()
    assert (request.ends, bench.is_late()) == (["started"], False)
