"""Brief limited tasks and long ones, which a concurrency limit, a rate or nothing limits, in one queue."""

from __future__ import annotations

import os
import time
from typing import Any

from benchmarks import TASK
from benchmarks.apps import RATE, make_app, work
from celery_ratelimit import Concurrency, RateLimitedTask

app = make_app()
app.conf.ratelimit_url = app.conf.broker_url

THROTTLE = os.environ.get("BENCH_THROTTLE", "retry")
LIMITS: dict[str, Any] = {"concurrency": Concurrency(6), "rate": "10/s", "none": None}


@app.task(name=TASK, base=RateLimitedTask, limits=f"{RATE}/s", throttle=THROTTLE)
def brief(index: int) -> None:
    work(index)


@app.task(name=f"{TASK}.long", base=RateLimitedTask, limits=LIMITS[os.environ["BENCH_LONG"]], throttle=THROTTLE)
def long(index: int, seconds: float) -> None:
    work(index)
    time.sleep(seconds)
