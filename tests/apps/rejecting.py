"""The fleet's app with tasks that reject their messages, which RabbitMQ dead-letters."""

from __future__ import annotations

from typing import Any

from celery.exceptions import Reject

from celery_ratelimit import RateLimitedTask
from tests.apps.fleet import RATE, app, note

__all__ = ["app"]


@app.task(base=RateLimitedTask, limits=RATE, acks_late=True)
def rejected(index: int) -> None:
    note(index)
    raise Reject(requeue=False)


@app.task(bind=True, base=RateLimitedTask, limits=RATE, acks_late=True)
def second_time(self: Any, index: int) -> None:
    """Rejects its message unless that was dead-lettered before."""
    note(index)
    if not (self.request.headers or {}).get("x-death"):
        raise Reject(requeue=False)
