"""The fleet's app, and a task under ``Concurrency`` that ends in whichever way it is told."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from celery.exceptions import Ignore, Reject

from celery_ratelimit import Concurrency, RateLimitedTask
from tests.apps.fleet import app, note

__all__ = ["app"]

#: Its leases last for longer than any test: what is free again was given back.
PLACES = Concurrency(2, name="ends", lease=600.0)


@app.task(bind=True, base=RateLimitedTask, limits=PLACES, max_retries=1, default_retry_delay=0)
def end(self: Any, index: int, how: str) -> None:
    note(index)
    if how == "fails":
        raise RuntimeError(how)
    if how == "is ignored":
        raise Ignore
    if how == "is rejected":
        raise Reject(how, requeue=False)
    if how == "is tried again" and not self.request.retries:
        raise self.retry()
    if how == "is replaced" and not self.request.replaced_task_nesting:
        raise self.replace(self.si(index, how))
    if how == "leaves the process":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "exits":
        raise SystemExit(1)
    if how == "takes a while":
        time.sleep(2)
    if how == "takes long":
        time.sleep(60)


@app.task
def busy(index: int) -> None:
    """Until the test says so."""
    note(index)
    while not os.path.exists(os.path.join(os.environ["TEST_RECORDS"], "go")):
        time.sleep(0.05)
