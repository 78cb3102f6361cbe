"""The fleet's app, and tasks for solo workers: they take a while, or end in unusual ways."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from celery.exceptions import Reject

from celery_ratelimit import RateLimitedTask
from tests.apps.fleet import RATE, app, note

__all__ = ["app"]


def body(self: Any, index: int, seconds: float = 0.0, error: str = "") -> None:
    note(index)
    if not self.request.delivery_info["redelivered"]:
        time.sleep(seconds)
    if error == "SIGKILL":
        os.kill(os.getpid(), signal.SIGKILL)
    if error:
        raise {"SystemExit": SystemExit, "MemoryError": MemoryError, "Reject": Reject, "OSError": OSError}[error](1)


for _name, _options in {
    "early": {"base": RateLimitedTask, "limits": RATE, "throttle": "wait"},
    "parked": {"base": RateLimitedTask, "limits": RATE},
    "parked_late": {"base": RateLimitedTask, "limits": RATE, "acks_late": True},
    "sparing": {"base": RateLimitedTask, "limits": RATE, "acks_late": True, "acks_on_failure_or_timeout": False},
    "free": {},
}.items():
    app.task(bind=True, name=f"{__name__}.{_name}", **_options)(body)
