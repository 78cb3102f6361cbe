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
from celery_ratelimit.store_calls.store_calls import StoreCalls
from celery_ratelimit.store_calls.tuning import THREADS_FROM
from celery_ratelimit.worker.bootstep import GateStep
from tests.unit.worker.gate_bench import Bench


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


def test_store_threads_end_with_the_worker() -> None:
    timers = SimpleNamespace(call_soon_wakes_loop=True, call_soon=lambda call: None, guarded=lambda call: call)
    worker: Any = SimpleNamespace(timers=timers, broker=SimpleNamespace(no_event_loop=False))
    calls = StoreCalls(worker, None)  # type: ignore[arg-type]
    calls.latency.note(THREADS_FROM)
    before = set(threading.enumerate())
    for _ in range(2):
        in_flight = calls.submit(lambda: 1, lambda reply: None)
        assert in_flight is not None
        assert in_flight.result(10).get() == 1
        started = set(threading.enumerate()) - before
        assert started
        calls.close()
        for thread in started:
            thread.join(10)
        assert not any(thread.is_alive() for thread in started)


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
    running = bench.receive(task)
    assert running.ends == ["started"]
    bench.tats["r1"] = bench.now + 0.05
    due = bench.receive(bench.task("wait", "r1"))
    waiting = [bench.receive(task), bench.receive(plain)]
    asked = len(bench.acquire_sizes)
    bench.gate.worker.is_stopping = True  # type: ignore[misc]
    bench.finish()
    waiting += [bench.receive(task), bench.receive(plain)]
    bench.run(1.0)
    assert [each.ends for each in [due, *waiting]] == [[]] * 5, "the broker has their messages"
    assert len(bench.acquire_sizes) == asked
    bench.lose_connection()
    assert not bench.leases_of.get("place"), "for other workers"
    bench.check_empty()


def test_permit_granted_after_a_stop_is_released(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch)
    bench.on_step["ask"] = [lambda: setattr(bench.gate.worker, "is_stopping", True)]
    request = bench.receive(bench.task("wait", "place"))
    bench.run(1.0)
    assert request.ends == []
    bench.lose_connection()
    assert not bench.leases_of.get("place")
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
    (thread,) = [each for each in threading.enumerate() if each.name == "celery_ratelimit-soft-shutdown"] or [None]
    if thread is not None:
        thread.join(30)
    assert all(polls)
    before_celery_has_soft_shutdowns: Any = Worker.__new__(Worker)
    before_celery_has_soft_shutdowns._consumer = SimpleNamespace(controller=SimpleNamespace())
    before_celery_has_soft_shutdowns.during_soft_shutdown(poll, 0.001)
