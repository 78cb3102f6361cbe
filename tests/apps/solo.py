"""The fleet's app, and tasks for solo workers whose first run takes a while."""

from __future__ import annotations

import time
from typing import Any

from celery_ratelimit import RateLimitedTask
from tests.apps.fleet import RATE, app, note

__all__ = ["app"]


def body(self: Any, index: int, seconds: float = 0.0) -> None:
    note(index)
    if not self.request.delivery_info["redelivered"]:
        time.sleep(seconds)


for _name, _options in {
    "early": {"base": RateLimitedTask, "limits": RATE, "throttle": "wait"},
    "parked": {"base": RateLimitedTask, "limits": RATE},
    "free": {},
}.items():
    app.task(bind=True, name=f"{__name__}.{_name}", **_options)(body)  # type: ignore[call-overload]
