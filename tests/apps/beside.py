"""The fleet's app, and tasks that keep a pool busy: for so many seconds, with limits or without."""

from __future__ import annotations

import time
from typing import Any

from celery_ratelimit import Concurrency, RateLimitedTask
from tests.apps.fleet import RATE, app, note

__all__ = ["app"]


def stay(index: int, seconds: float = 0.0) -> None:
    note(index)
    time.sleep(seconds)


LIMITED: dict[str, dict[str, Any]] = {
    "retry": {"limits": RATE},
    "wait": {"limits": RATE, "throttle": "wait"},
    "within_concurrency": {"limits": Concurrency(100, name="long")},
    "within_rate": {"limits": "10/s"},
}
for _name, _options in LIMITED.items():
    app.task(base=RateLimitedTask, name=f"{__name__}.{_name}", **_options)(stay)
app.task(name=f"{__name__}.busy")(stay)
