"""The gate's bootstep on its way down."""

from __future__ import annotations

import threading
from collections import deque
from types import SimpleNamespace
from typing import Any

from celery.signals import task_revoked
from celery.worker.consumer import Consumer

from celery_ratelimit._celery import Worker
from celery_ratelimit.worker.bootstep import GateStep
from celery_ratelimit.worker.store_calls import StoreCalls
from celery_ratelimit.worker.store_latency import StoreLatency


def test_what_is_to_be_acknowledged_in_the_next_turn_of_a_loop_that_has_ended_is_acknowledged() -> None:
    """As Celery before 5.7 keeps it where it has no event loop; what has run would come once more."""
    said: list[str] = []
    consumer: Any = Consumer.__new__(Consumer)
    consumer.hub, consumer._pending_operations = None, deque([lambda: said.append("acknowledged")])
    worker: Any = Worker.__new__(Worker)
    worker._consumer, worker.receipts = consumer, SimpleNamespace(close=lambda: None)
    step: Any = GateStep.__new__(GateStep)
    step.gate = SimpleNamespace(worker=worker, close=lambda: said.append("let go"))
    step.stop(consumer)
    assert said == ["let go"], "the connection is lost: nothing can be said"
    step.close(consumer)
    assert said == ["let go", "let go", "acknowledged"]


def test_a_worker_that_has_ended_hears_of_no_revoked_task_any_more() -> None:
    """Several workers run in one process one after the other in users' tests."""
    heard: list[str] = []
    before = len(task_revoked.receivers)
    for _ in range(3):
        consumer: Any = SimpleNamespace(event_dispatcher=None)
        step: Any = GateStep.__new__(GateStep)
        step._lost = None
        worker = SimpleNamespace(receipts=SimpleNamespace(open=lambda: None, close=lambda: None))
        worker.tell_what_waits = lambda: None
        step.gate = SimpleNamespace(
            worker=worker,
            begin=lambda: None,
            close=lambda: None,
            on_revoked=lambda task, request: heard.append(request),
        )
        step.start(consumer)
        task_revoked.send(sender=None, request="revoked")
        step.stop(consumer)  # the connection was lost
        step.start(consumer)
        step.close(consumer)
    assert heard == ["revoked"] * 3
    assert len(task_revoked.receivers) == before


def test_threads_for_the_store_end_with_the_worker() -> None:
    timers = SimpleNamespace(are_called_soon=True, call_soon=lambda call: None, contained=lambda call: call)
    worker: Any = SimpleNamespace(timers=timers, broker=SimpleNamespace(apart=False))
    calls = StoreCalls(worker, StoreLatency(), None)  # type: ignore[arg-type]
    before = set(threading.enumerate())
    for _ in range(2):
        calls.run(lambda: 1, lambda reply, at: None)()
        started = set(threading.enumerate()) - before
        assert started
        calls.close()
        for thread in started:
            thread.join(10)
        assert not any(thread.is_alive() for thread in started)
