"""Observers are told of each outcome once, and cannot harm the worker."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from celery import Celery

from celery_ratelimit import ConfigurationError, StoreUnavailable, observe
from celery_ratelimit.app.observers import observers_of
from celery_ratelimit.observing import Observation
from celery_ratelimit.worker import gate, reporting
from tests.unit.worker.gate_bench import Bench


@pytest.fixture
def seen() -> list[Observation]:
    return []


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, seen: list[Observation]) -> Bench:
    observers: list[Any] = [seen.append]

    def reporter(*_: Any) -> reporting.Reporter:
        return reporting.Reporter(observers)

    monkeypatch.setattr(gate, "Reporter", reporter)
    made = Bench(monkeypatch)
    monkeypatch.setattr(reporting, "monotonic", lambda: made.now)
    return made


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


@pytest.mark.parametrize(("task", "outcome"), [(("drop", "r1"), "dropped"), (("fail", "r1"), "failed")])
def test_dropped_and_failed_tasks_are_observed(
    bench: Bench, seen: list[Observation], task: tuple[str, str], outcome: str
) -> None:
    kind = bench.task(*task)
    bench.receive(kind)
    bench.receive(kind)
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
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    later: list[Observation] = []

    def broken(_: Observation) -> None:
        raise ZeroDivisionError("observer")

    reporter = reporting.Reporter([broken, later.append])
    monkeypatch.setattr(gate, "Reporter", lambda *_: reporter)
    bench = Bench(monkeypatch)
    for _ in range(3):
        bench.receive(bench.task("drop", "r1"))
    assert len(later) == 3
    assert len(bench.running) == 1
    assert caplog.text.count("which is said once") == 1


def test_throttled_task_is_counted_without_its_log_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The label of a stored rate is read from the store only if something is told of it."""
    counted: list[Observation] = []
    labels_read: list[Any] = []
    reporter = reporting.Reporter([], lambda *asked: labels_read.append(asked) or "20/s set by anna", counted.append)  # type: ignore[func-returns-value]
    monkeypatch.setattr(gate, "Reporter", lambda *_: reporter)
    bench = Bench(monkeypatch)
    task = bench.task("drop", "r1")
    caplog.set_level(logging.WARNING, "celery_ratelimit")
    bench.receive(task)
    bench.receive(task)
    assert outcomes(counted) == [("acquired", "r1"), ("dropped", "r1")]
    assert (labels_read, counted[-1].asked, counted[-1].queue) == ([], (("r1", "", 1),), "celery")
    caplog.set_level(logging.INFO, "celery_ratelimit")
    bench.receive(task)
    assert "20/s set by anna" in caplog.text
    assert len(labels_read) == 1


class Observer:
    def __call__(self, seen: Observation) -> None: ...


def test_observers_come_from_settings_and_observe() -> None:
    app = Celery("a", broker="redis://localhost", set_as_current=False)
    app.conf.ratelimit_observers = ["tests.unit.worker.test_reporter:Observer", "builtins.print"]
    observe(app, print)
    first, *rest = observers_of(app)
    assert isinstance(first, Observer)
    assert rest == [print, print]


@pytest.mark.parametrize(
    "named", ["no.such.module", "tests.unit.worker.test_reporter.absent", "math.pi", "builtins.int.x"]
)
def test_missing_observer_error_names_it(named: str) -> None:
    app = Celery("a", broker="redis://localhost", set_as_current=False)
    app.conf.ratelimit_observers = [named]
    with pytest.raises(ConfigurationError, match=f"ratelimit_observers: '{named}'"):
        observers_of(app)
