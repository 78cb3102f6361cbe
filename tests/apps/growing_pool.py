"""The fleet's app, and tasks that take long, with a limit that allows many or with none."""

from __future__ import annotations

import time

from celery_ratelimit import RateLimitedTask
from tests.apps.fleet import RATE, app, note

__all__ = ["app"]


def body(index: int) -> None:
    note(index)
    time.sleep(5)


app.task(base=RateLimitedTask, name="slow_wait", limits=RATE, throttle="wait")(body)
app.task(base=RateLimitedTask, name="slow_retry", limits=RATE)(body)
app.task(name="slow_unlimited")(body)
