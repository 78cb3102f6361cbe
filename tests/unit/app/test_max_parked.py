"""``max_parked``: its errors and reports, and tasks beyond it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from celery import Celery

from celery_ratelimit import ConfigurationError, Limit, RateLimitedTask
from celery_ratelimit.app.app_limits import limits_of_app
from celery_ratelimit.app.survey import forgotten, limits_shown
from celery_ratelimit.backlog.backlog import ParkResult
from celery_ratelimit.limiter.limit_request import LimitRequest
from celery_ratelimit.limits.stored import limit_stored, limit_to_store
from tests.unit.worker.gate_bench import Bench

BOUNDED = Limit("10/s", name="r1", max_parked=3)


def app_with(*limits: Any, **options: Any) -> Celery:
    app = Celery("bounded", broker="redis://localhost:1/0", set_as_current=False)
    for number, limit in enumerate(limits):

        @app.task(base=RateLimitedTask, name=f"sync{number}", shared=False, limits=limit, **options)
        def sync(account_id: int) -> None: ...

    return app


def test_max_parked_error_names_the_task() -> None:
    with pytest.raises(ConfigurationError, match=r"task 'sync0'.*: Limit\('1/s'\): max_parked=0 must be"):
        limits_of_app(app_with({"rate": "1/s", "max_parked": 0}))


def test_two_limits_of_a_name_have_one_bound() -> None:
    with pytest.raises(ConfigurationError, match="two different limits are called 'r1'"):
        limits_of_app(app_with(BOUNDED, replace(BOUNDED, max_parked=4)))


def test_a_stored_rate_keeps_the_bound_of_the_code() -> None:
    stored = limit_to_store("r1", "5/s", BOUNDED)
    assert (stored.max_parked, limit_stored("r1", {"rate": "5/s"}, BOUNDED).max_parked) == (3, 3)


def test_the_worker_shows_the_bound() -> None:
    assert "r1: 10/s, at most 3 parked (task sync0)" in limits_shown(app_with(BOUNDED))


@pytest.mark.parametrize(
    ("limits", "throttle", "is_said"),
    [
        (BOUNDED, "retry", False),
        (BOUNDED, "drop", False),
        (BOUNDED, "wait", True),
        ([BOUNDED, Limit("1/s", name="leaky", algorithm="leaky_bucket", capacity=3)], "retry", True),
    ],
)
def test_ineffective_max_parked_is_reported(limits: Any, throttle: str, is_said: bool) -> None:
    said = forgotten(app_with(limits, throttle=throttle))
    assert len(said) == is_said
    assert all("task 'sync0': max_parked=3 of limit 'r1' does not bound it" in each for each in said)


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
