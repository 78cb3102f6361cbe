"""The gate's bootstep when a worker stops."""

from __future__ import annotations

import threading
from collections import deque
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from celery.worker import state
from celery.worker.consumer import Consumer

from celery_ratelimit._celery import Worker
from celery_ratelimit.worker.bootstep import GateStep
from tests.unit.worker.gate_bench import Bench, ends


def test_pending_acknowledgement_is_sent_when_the_worker_closes() -> None:
    """As Celery before 5.7 keeps it where it has no event loop; what has run would come once more."""
    said: list[str] = []
    consumer: Any = Consumer.__new__(Consumer)
    consumer.hub, consumer._pending_operations = None, deque([lambda: said.append("acknowledged")])
    worker: Any = Worker.__new__(Worker)
    worker._consumer = consumer
    worker.final_states = SimpleNamespace(close=lambda stopping: said.append("ended"))
    step: Any = GateStep.__new__(GateStep)
    step.gate = SimpleNamespace(worker=worker, close=lambda: said.append("let go"))
    step.stop(consumer)
    assert said == ["let go"], "the connection is lost: nothing can be said"
    step.close(consumer)
    assert said == ["let go", "ended", "let go", "acknowledged"]


@pytest.mark.parametrize("name", ["should_stop", "should_terminate"])
@pytest.mark.parametrize("exitcode", [0, 1, True])
def test_worker_is_stopping_when_celery_sets_a_stop_flag(
    monkeypatch: pytest.MonkeyPatch, name: str, exitcode: Any
) -> None:
    worker: Any = Worker.__new__(Worker)
    for flag in ("should_stop", "should_terminate"):
        monkeypatch.setattr(state, flag, None)
    assert not worker.is_stopping
    monkeypatch.setattr(state, name, exitcode)
    assert worker.is_stopping
    monkeypatch.setattr(state, name, False)
    assert not worker.is_stopping


@pytest.mark.parametrize("throttle", ["retry", "wait"])
def test_stopping_worker_starts_and_acquires_nothing(monkeypatch: pytest.MonkeyPatch, throttle: str) -> None:
    bench = Bench(monkeypatch, processes=1)
    task, plain = bench.task(throttle, "place"), bench.task("plain")
    bench.receive(task)
    bench.tats["r1"] = bench.now + 0.05
    bench.receive(bench.task("wait", "r1"))
    before = [bench.receive(task), bench.receive(plain)]
    asked = len(bench.acquire_sizes)
    bench.gate.worker.is_stopping = True  # type: ignore[misc]
    bench.finish()
    for request in before:
        bench.receive(request.task)
    bench.run(1.0)
    assert ends(bench.requests) == ["started", *[""] * 5], "the broker has their messages"
    assert len(bench.acquire_sizes) == asked
    bench.lose_connection()
    bench.check_empty()  # the leases are for other workers


def test_permit_granted_after_a_stop_is_released(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch)
    bench.on_step["ask"] = [lambda: setattr(bench.gate.worker, "is_stopping", True)]
    request = bench.receive(bench.task("wait", "place"))
    bench.run(1.0)
    assert request.ends == []
    bench.lose_connection()
    bench.check_empty()


@pytest.mark.parametrize("error", [None, SystemExit(1)])
def test_soft_shutdown_stops_starts_and_polls_for_ends(error: Any) -> None:
    polls: list[bool] = []
    polled = threading.Event()

    def wait() -> None:
        """As Celery sleeps, in the handler of the signal."""
        assert worker.is_stopping
        assert polled.wait(30)
        if error is not None:
            raise error

    def poll() -> None:
        polls.append(worker.is_stopping)
        polled.set()

    controller = SimpleNamespace(wait_for_soft_shutdown=wait)
    worker: Any = Worker.__new__(Worker)
    worker._consumer = SimpleNamespace(controller=controller)
    worker.during_soft_shutdown(poll, 0.001)
    assert not worker.is_stopping
    with pytest.raises(SystemExit) if error is not None else nullcontext():
        controller.wait_for_soft_shutdown()
    assert worker.is_stopping
    for thread in threading.enumerate():
        if thread.name == "celery_ratelimit-soft-shutdown":
            thread.join(30)
    assert all(polls)
    worker._consumer = SimpleNamespace(controller=SimpleNamespace())  # as before Celery has soft shutdowns
    worker.during_soft_shutdown(poll, 0.001)
