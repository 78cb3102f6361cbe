"""The fleet's app, and tasks that keep a pool busy: for so many seconds, with limits or without."""

from __future__ import annotations

import os
import time
from typing import Any

from celery_ratelimit import Concurrency, RateLimitedTask
from tests.apps.fleet import RATE, app, note

__all__ = ["app"]


@app.task
def busy(index: int, seconds: float) -> None:
    note(index)
    time.sleep(seconds)


@app.task(base=RateLimitedTask, limits=RATE, throttle=os.environ.get("TEST_THROTTLE", "retry"))
def limited(index: int, seconds: float = 0.0) -> None:
    note(index)
    time.sleep(seconds)


LIMITS: dict[str, Any] = {"concurrency": Concurrency(100, name="long"), "rate": "10/s", "nothing": None}


@app.task(base=RateLimitedTask, limits=LIMITS[os.environ.get("TEST_LONG", "nothing")])
def long(index: int, seconds: float) -> None:
    note(index)
    time.sleep(seconds)
