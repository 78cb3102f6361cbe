"""Limited tasks that wait for something: with greenlets many run at once."""

from __future__ import annotations

import os
import time

from benchmarks import TASK
from benchmarks.apps import RATE, make_app, work
from celery_ratelimit import RateLimitedTask

app = make_app()
app.conf.ratelimit_url = app.conf.broker_url


@app.task(name=TASK, base=RateLimitedTask, limits=f"{RATE}/s", throttle=os.environ.get("BENCH_THROTTLE", "retry"))
def call(index: int) -> None:
    work(index)
    time.sleep(0.2)


@app.task(name=f"{TASK}.plain")
def plain(index: int) -> None:
    work(index)
    time.sleep(0.2)
