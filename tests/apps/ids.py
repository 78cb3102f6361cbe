"""Tasks whose ids are used more than once: by ``self.replace()``, and by who sends them."""

from __future__ import annotations

import time
from typing import Any

from celery_ratelimit import Concurrency, Limit, RateLimitedTask
from tests.apps.fleet import RATE, app, note, occupy

ONE = Concurrency(1, name="one", lease=10.0)


@app.task(bind=True, base=RateLimitedTask, limits=ONE)
def replacing(self: Any, index: int, seconds: float) -> Any:
    """Is still at it when what takes its place has come, as the broker is quick."""
    note(index)
    try:
        return self.replace(occupying.s(index + 1, seconds))
    finally:
        time.sleep(seconds)
        note(-1 - index)


@app.task(base=RateLimitedTask, limits=ONE)
def occupying(index: int, seconds: float) -> int:
    return occupy(index, seconds)


@app.task(base=RateLimitedTask, limits=Limit(RATE, name="shared"))
def numbered(index: int) -> int:
    note(index)
    return index


@app.task(base=RateLimitedTask, limits=Limit(RATE, name="shared"), throttle="wait")
def patient(index: int) -> int:
    note(index)
    return index
