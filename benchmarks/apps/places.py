"""Tasks of which only some may run at once."""

from __future__ import annotations

import os
import time

from benchmarks import TASK
from benchmarks.apps import RATE, make_app, work
from celery_ratelimit import Concurrency, RateLimitedTask

app = make_app()


@app.task(name=TASK, base=RateLimitedTask, limits=Concurrency(RATE), throttle=os.environ.get("BENCH_THROTTLE", "retry"))
def call(index: int) -> None:
    work(index)
    time.sleep(0.2)
