"""A task whose limits and options a random fleet of ``tests/fuzz.py`` has chosen."""

from __future__ import annotations

import json
import os
import time
from typing import Any

from celery_ratelimit import Concurrency, Limit, RateLimitedTask
from tests.apps.fleet import app, note, recorder

__all__ = ["app"]

chosen = json.loads(os.environ["TEST_FUZZ"])
limits = [Limit(name="rate", **chosen["limit"]), *[Concurrency(places, name="places") for places in chosen["places"]]]


@app.task(name="fuzzed", base=RateLimitedTask, limits=limits, bind=True, **chosen["options"])
def fuzzed(self: Any, index: int, tenant: str, seconds: float) -> int:
    note(index)
    if self.request.retries:
        recorder("retried").note(index, time.time(), 0)
    time.sleep(seconds)
    return index
