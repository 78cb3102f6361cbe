"""A worker with several queues widens its prefetch by the requests that wait for their turns."""

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
