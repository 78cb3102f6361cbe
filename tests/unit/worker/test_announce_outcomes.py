"""Observers are told of each outcome once, and cannot harm the worker. The report of a throttled task."""

from __future__ import annotations

import json
import logging
import pickle
from typing import Any
from unittest.mock import Mock

import pytest
from celery import Celery

from celery_ratelimit import Concurrency, ConfigurationError, Limit, StoreUnavailable, Throttled, observe
from celery_ratelimit.app.observers import observers_of
from celery_ratelimit.limiter.limit_request import LimitRequest
from celery_ratelimit.observing import Observation
from celery_ratelimit.worker import announce_outcomes, gate
from celery_ratelimit.worker.announce_outcomes import ThrottleReport
from tests.unit.worker.gate_bench import Bench


def report_to(monkeypatch: pytest.MonkeyPatch, *arguments: Any) -> Bench:
    """A gate whose reporter has these arguments."""
    reporter = announce_outcomes.Reporter(*arguments)
    monkeypatch.setattr(gate, "Reporter", lambda *_: reporter)
    return Bench(monkeypatch)


@pytest.fixture
def seen() -> list[Observation]:
    return []


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, seen: list[Observation]) -> Bench:
    return report_to(monkeypatch, [seen.append])


def outcomes(seen: list[Observation]) -> list[tuple[str, str | None]]:
    return [(each.outcome, each.limit) for each in seen]


def test_acquired_waiting_and_waited_are_observed(bench: Bench, seen: list[Observation]) -> None:
    task = bench.task("wait", "r1")
    bench.receive(task)
    assert outcomes(seen) == [("acquired", "r1")]
    bench.receive(task)
    bench.run(1)
    assert outcomes(seen)[1:] == [("waiting", "r1"), ("waited", "r1")]
    waiting, waited = seen[1:]
    assert (waited.task, waited.queue, waited.cost) == (task.name, "celery", 1)
    assert waited.asked == (("r1", "", 1),)
    assert waiting.retry_after == pytest.approx(0.1)
    assert waited.throttled_for == pytest.approx(0.1, abs=0.03)
    assert waiting.said.startswith("throttled by limit 'r1' (10/s): waits in this worker")


@pytest.mark.parametrize(("throttle", "outcome"), [("drop", "dropped"), ("fail", "failed")])
def test_dropped_and_failed_tasks_are_observed(
    bench: Bench, seen: list[Observation], throttle: str, outcome: str
) -> None:
    for _ in range(2):
        bench.receive(bench.task(throttle, "r1"))
    assert outcomes(seen) == [("acquired", "r1"), (outcome, "r1")]
    assert "throttled by limit 'r1'" in seen[-1].reason


def test_store_error_is_observed(bench: Bench, seen: list[Observation]) -> None:
    bench.on_step["ask"] = [StoreUnavailable("gone")]
    bench.receive(bench.task("retry", "r1"))
    assert outcomes(seen) == [("store_error", None)]


def test_task_left_to_another_worker_is_observed_as_returned(bench: Bench, seen: list[Observation]) -> None:
    bench.mean_runtime = lambda name: 5.0  # type: ignore[method-assign]
    for _ in range(bench.processes):
        bench.receive(bench.task("plain"))
    bench.receive(bench.task("retry", "r1"), via_return_queue=True)
    assert outcomes(seen) == [("returned", "r1")]


def test_raising_observer_is_logged_once_and_others_are_called(
    monkeypatch: pytest.MonkeyPatch, seen: list[Observation], caplog: pytest.LogCaptureFixture
) -> None:
    bench = report_to(monkeypatch, [Mock(side_effect=ZeroDivisionError("observer")), seen.append])
    for _ in range(3):
        bench.receive(bench.task("drop", "r1"))
    assert (len(seen), len(bench.running)) == (3, 1)
    assert caplog.text.count("which is said once") == 1


def test_throttled_task_is_counted_without_its_log_line(
    monkeypatch: pytest.MonkeyPatch, seen: list[Observation], caplog: pytest.LogCaptureFixture
) -> None:
    """The label of a stored rate is read from the store only if something is told of it."""
    label = Mock(return_value="20/s set by anna")
    bench = report_to(monkeypatch, [], label, seen.append)
    task = bench.task("drop", "r1")
    caplog.set_level(logging.WARNING, "celery_ratelimit")
    bench.receive(task)
    bench.receive(task)
    assert outcomes(seen) == [("acquired", "r1"), ("dropped", "r1")]
    assert (label.call_count, seen[-1].asked, seen[-1].queue) == (0, (("r1", "", 1),), "celery")
    caplog.set_level(logging.INFO, "celery_ratelimit")
    bench.receive(task)
    assert "20/s set by anna" in caplog.text
    assert label.call_count == 1


class Observer:
    def __call__(self, seen: Observation) -> None: ...


def test_observers_come_from_settings_and_observe() -> None:
    app = Celery("a", broker="redis://localhost", set_as_current=False)
    app.conf.ratelimit_observers = ["tests.unit.worker.test_announce_outcomes:Observer", "builtins.print"]
    observe(app, print)
    first, *rest = observers_of(app)
    assert isinstance(first, Observer)
    assert rest == [print, print]


@pytest.mark.parametrize(
    "named", ["no.such.module", "tests.unit.worker.test_announce_outcomes.absent", "math.pi", "builtins.int.x"]
)
def test_missing_observer_error_names_it(named: str) -> None:
    app = Celery("a", broker="redis://localhost", set_as_current=False)
    app.conf.ratelimit_observers = [named]
    with pytest.raises(ConfigurationError, match=f"ratelimit_observers: '{named}'"):
        observers_of(app)


# -- The report of a throttled task: log line, event, error ------------------------------------------------------------


STRIPE = LimitRequest(Limit("100/s", name="stripe"), "stripe")
TENANT = LimitRequest(Limit("5/s", name="tenant", key="tenant:{tenant_id}"), "tenant", "tenant:7")
BOUNDED = LimitRequest(Limit("5/s", name="bounded", max_parked=9), "bounded")


@pytest.mark.parametrize(
    ("report", "text"),
    [
        (ThrottleReport("parked", 1.99, STRIPE), "'stripe' (100/s): parked, its turn is in 1.990 s"),
        (
            ThrottleReport("waiting", 0.5, TENANT),
            "'tenant' (5/s, key 'tenant:7'): waits in this worker, its turn is in 0.500 s",
        ),
        (
            ThrottleReport("returned", 5, STRIPE, 0.5),
            "'stripe' (100/s in code, 2/s now): sent back, its turn is in 5.000 s",
        ),
        (
            ThrottleReport("returned", 5, TENANT, 0.5, "2/s set by anna"),
            "'tenant' (5/s in code, 2/s set by anna, key 'tenant:7'): sent back, its turn is in 5.000 s",
        ),
        (ThrottleReport("dropped", 0.01, STRIPE, 0.01), "'stripe' (100/s): dropped, a permit is free in 0.010 s"),
        (
            ThrottleReport("failed", 12.34, TENANT, max_wait=2),
            "'tenant' (5/s, key 'tenant:7'): failed, as its turn would be in 12.340 s, beyond max_wait=2 s",
        ),
        (
            ThrottleReport("failed", 0.978, STRIPE, max_wait=2, waited=1.5),
            "'stripe' (100/s): failed, as its turn would be in 0.978 s after 1.500 s of waiting, beyond max_wait=2 s",
        ),
        (
            ThrottleReport("diverted", 12.34, STRIPE, max_wait=2, to="later"),
            "'stripe' (100/s): sent on to queue 'later', as its turn would be in 12.340 s, beyond max_wait=2 s",
        ),
        (
            ThrottleReport("failed", 0.2, STRIPE, queue_full=True),
            "'stripe' (100/s): failed, as there is no room to wait, but in 0.200 s",
        ),
        (
            ThrottleReport("dropped", 12.34, BOUNDED, queue_full=True),
            "'bounded' (5/s): dropped, as 9 tasks wait already (max_parked), and its turn would be in 12.340 s",
        ),
        (ThrottleReport("parked", 12.34, BOUNDED), "'bounded' (5/s): parked, its turn is in 12.340 s"),
        (
            ThrottleReport("parked", 1, LimitRequest(Concurrency(4, name="gpu"), "gpu")),
            "'gpu' (4 at once): parked, its turn is in 1.000 s",
        ),
        (
            ThrottleReport("parked", 1e9 - 1, STRIPE),
            "'stripe' (100/s): parked, its turn comes when the limit is resumed",
        ),
    ],
)
def test_log_line(report: ThrottleReport, text: str) -> None:
    assert str(report) == f"throttled by limit {text}"


def test_log_line_of_an_outage_names_no_limit() -> None:
    text = "throttled while the limiter's store does not answer: sent back for 2.000 s"
    assert str(ThrottleReport("returned", 2)) == text


def test_reason_names_max_parked() -> None:
    reason = ThrottleReport("dropped", 12.34, BOUNDED, queue_full=True).reason
    assert reason == (
        "throttled by limit 'bounded': a permit is free in 12.340 s, and 9 tasks wait already (max_parked)"
    )
    assert ThrottleReport("dropped", 12.34, BOUNDED).error.max_parked is None


def test_event_fields() -> None:
    fields = ThrottleReport("failed", 12.34, TENANT, max_wait=2).fields()
    assert fields == {
        "retry_after": 12.34,
        "limit": "tenant",
        "outcome": "failed",
        "rate": "5/s",
        "key": "tenant:7",
        "reason": "throttled by limit 'tenant', key 'tenant:7': a permit is free in 12.340 s, beyond max_wait=2 s",
    }
    lost = ThrottleReport("returned", 2).fields()
    assert (lost["limit"], lost["key"], lost["rate"]) == (None, "", "")
    assert json.loads(json.dumps([fields, lost])) == [fields, lost]


@pytest.mark.parametrize(
    "arguments", [("a", 1.5), ("a", 1.5, 2.0), ("a", 1.5, None, "k"), ("a", 1.5, 2.0, "k"), ("a", 1.5, None, "", 9)]
)
def test_throttled_error_survives_a_result_backend(arguments: tuple[Any, ...]) -> None:
    error = Throttled(*arguments)
    for again in (pickle.loads(pickle.dumps(error)), Throttled(*error.args)):
        assert str(again) == str(error)
        assert vars(again) == vars(error)
    assert len(Throttled("api", 1.5).args) == 2, "older versions take no more"
