"""The gate's bootstep on its way down."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import Any

from celery.worker.consumer import Consumer

from celery_ratelimit._celery import Worker
from celery_ratelimit.worker.bootstep import GateStep


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
