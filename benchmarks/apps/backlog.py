"""Limited tasks in both modes, and one that no limit holds, which notes when it starts by its name."""

from __future__ import annotations

import os
from pathlib import Path

from benchmarks import TASK
from benchmarks.apps import RATE, make_app, work
from celery_ratelimit import RateLimitedTask

app = make_app()
app.conf.ratelimit_url = app.conf.broker_url
LIMITS = f"{RATE}/s"


@app.task(name=TASK, base=RateLimitedTask, limits=LIMITS)
def call(index: int) -> None:
    work(index)


@app.task(name=f"{TASK}.wait", base=RateLimitedTask, limits=LIMITS, throttle="wait")
def wait(index: int) -> None:
    work(index)


@app.task(name=f"{TASK}.unlimited")
def unlimited() -> None:
    Path(os.environ["BENCH_RECORDS"], "unlimited").touch()
