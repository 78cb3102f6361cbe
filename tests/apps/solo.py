"""The fleet's app, and tasks for solo workers: they take a while, or end in unusual ways."""

from __future__ import annotations

import os
import signal
import time
from itertools import count
from typing import Any

from celery.exceptions import Reject
from celery.signals import task_postrun

from celery_ratelimit import RateLimitedTask
from tests.apps.fleet import RATE, app, note

__all__ = ["app"]

ERRORS = {"SystemExit": SystemExit, "MemoryError": MemoryError, "Reject": Reject, "OSError": OSError}
_number = count(1)


def body(self: Any, index: int, seconds: float = 0.0, error: str = "", last: int = 0) -> None:
    """``last``: the number of tasks after whose start the worker is killed; 0: it is not."""
    note(index)
    if not self.request.delivery_info["redelivered"]:
        time.sleep(seconds)
    if next(_number) == last:
        os.kill(os.getpid(), signal.SIGKILL)
    if error in ERRORS:
        raise ERRORS[error](1)


for _name, _options in {
    "early": {"base": RateLimitedTask, "limits": RATE, "throttle": "wait"},
    "parked": {"base": RateLimitedTask, "limits": RATE},
    "parked_late": {"base": RateLimitedTask, "limits": RATE, "acks_late": True},
    "sparing": {"base": RateLimitedTask, "limits": RATE, "acks_late": True, "acks_on_failure_or_timeout": False},
    "free": {},
}.items():
    app.task(bind=True, name=f"{__name__}.{_name}", **_options)(body)


@task_postrun.connect
def end_worker(args: Any, **_: Any) -> None:
    """The result is stored, and the message is not acknowledged yet."""
    if "SIGKILL afterwards" in args:
        os.kill(os.getpid(), signal.SIGKILL)
