"""The fleet's app with what the tests of return queues need: a long task, and a channel that breaks on demand."""

from __future__ import annotations

import os
import time
from typing import Any

from celery.worker.consumer import consumer
from celery.worker.control import control_command
from kombu import Queue
from kombu.common import Broadcast
from kombu.utils.limits import TokenBucket

from celery_ratelimit import RateLimitedTask
from celery_ratelimit.worker.bootstep import GateStep
from tests.apps.fleet import RATE, app, note

__all__ = ["app"]

if os.environ.get("TEST_BROADCAST"):
    app.conf.task_queues = (Queue("celery"), Broadcast("everywhere", queue=os.environ["TEST_BROADCAST"]))


@app.task
def long(index: int, seconds: float) -> None:
    note(index)
    time.sleep(seconds)


@app.task(base=RateLimitedTask, limits=RATE, rate_limit="20/s")
def twice_limited(index: int) -> None:
    note(index)


class Counted(TokenBucket):
    """Celery's own, that tells how often it was paid."""

    paid = 0

    def can_consume(self, tokens: int = 1) -> bool:
        allowed = super().can_consume(tokens)
        Counted.paid += allowed
        return bool(allowed)


consumer.TokenBucket = Counted


@control_command()
def paid(state: Any) -> dict[str, int]:
    return {"paid": Counted.paid}


@control_command(args=[("which", str), ("swallowed", int)])
def break_channel(state: Any, which: str, swallowed: int) -> dict[str, str]:
    """Have the broker close a channel that this worker consumes on: it acknowledges what it was never given."""
    (step,) = [step for step in state.consumer.steps if isinstance(step, GateStep)]
    worker = step.gate.worker
    consumer = state.consumer.task_consumer if which == "main" else worker.consumption._return_consumer._consumer
    consumer.channel.basic_ack(4711)
    if swallowed:  # it is read by somebody who waits for another answer, and thinks that it can go on
        try:
            state.consumer.connection.channel().queue_declare("somewhere")
        except Exception as error:
            return {"ok": f"swallowed {error!r}"}
    return {"ok": "broken"}
