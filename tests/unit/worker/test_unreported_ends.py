"""The lease of a task that ends without a report of its pool is released."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from celery_ratelimit._celery import Pool
from celery_ratelimit.worker.concurrency import END_POLL_INTERVAL, ConcurrencyLeases


@pytest.fixture
def running() -> Any:
    alarms: list[tuple[float, Any]] = []
    ended: list[str] = []
    worker: Any = SimpleNamespace(
        pool=Pool(SimpleNamespace(num_processes=4, is_green=False)),
        timers=SimpleNamespace(call_after=lambda seconds, ring: alarms.append((seconds, ring)) or (lambda: None)),
    )
    asker: Any = SimpleNamespace(is_cluster=False, client=None, prefix="")
    leases: Any = SimpleNamespace(end=lambda run_id, **_: ended.append(run_id))
    unused: Any = None
    made: Any = ConcurrencyLeases(
        worker, asker, leases, unused, unused, unused, lambda request: made.end(request), lambda queues: None
    )
    made.alarms, made.ended = alarms, ended
    return made


def run(running: Any, id: str, *, known: bool) -> object:
    request = object()
    running.begin(SimpleNamespace(request=request, run_id=id, lease_unconfirmed=False))
    if known:
        running._worker.pool._jobs[request] = SimpleNamespace()
    return request


def test_lease_of_a_task_missing_from_the_pool_is_released(running: Any) -> None:
    waits_in_worker, gone = run(running, "stays", known=True), run(running, "gone", known=False)
    ((seconds, look),) = running.alarms
    look()
    assert running.ended == ["gone"]
    assert waits_in_worker in running
    assert gone not in running
    assert [seconds, running.alarms[1][0]] == [END_POLL_INTERVAL] * 2, "as long as one runs"


def test_no_poll_is_scheduled_while_nothing_runs(running: Any) -> None:
    running.watch()
    assert running.alarms == []
    run(running, "gone", known=False)
    running.alarms.pop()[1]()
    assert running.alarms == []
