"""``max_parked``: tasks beyond it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from celery_ratelimit import Limit
from celery_ratelimit.backlog.backlog import ParkResult
from celery_ratelimit.limiter.limit_request import LimitRequest
from celery_ratelimit.limits.stored_settings import limit_stored, limit_to_store
from tests.unit.worker.gate_bench import Bench

BOUNDED = Limit("10/s", name="r1", max_parked=3)


def test_stored_rate_keeps_the_bound_of_the_code() -> None:
    stored = limit_to_store("r1", "5/s", BOUNDED)
    assert (stored.max_parked, limit_stored("r1", {"rate": "5/s"}, BOUNDED).max_parked) == (3, 3)


def bounded(bench: Bench, **options: Any) -> Any:
    task = bench.task("retry", "r1", **options)
    task.plan = replace(task.plan, limits=(BOUNDED,), fixed=(LimitRequest(BOUNDED, "r1"),))
    return task


@pytest.mark.parametrize(("overflow", "end"), [("fail", "failed"), ("drop", "dropped"), ("later", "redirected")])
@pytest.mark.parametrize("behind", [True, False])
def test_task_beyond_max_parked_overflows(
    monkeypatch: pytest.MonkeyPatch, overflow: str, end: str, behind: bool
) -> None:
    bench = Bench(monkeypatch)
    bench.has_parked_tasks, bench.tats["r1"] = behind, bench.now + 5.0
    bench.park_results = [ParkResult("parked"), ParkResult("no_room", 3)]
    task = bounded(bench, overflow=overflow)
    assert [request.ends[:1] for request in bench.receive_batch([task, task])] == [["parked"], [end]]
    assert bench.bounds == [3, 3]
    bench.check_empty()


def test_overflow_queue_has_no_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch)
    bench.has_parked_tasks = True
    assert bench.receive(bounded(bench, overflow="other"), queue="other").ends == ["parked"]
    assert bench.bounds == [None]
