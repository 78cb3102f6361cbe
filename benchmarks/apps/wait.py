"""celery_ratelimit, ``throttle="wait"``."""

from __future__ import annotations

from benchmarks import TASK
from benchmarks.apps import RATE, make_app, work
from celery_ratelimit import RateLimitedTask

app = make_app()
app.conf.ratelimit_url = app.conf.broker_url


@app.task(name=TASK, base=RateLimitedTask, limits=f"{RATE}/s", throttle="wait")
def call(index: int) -> None:
    work(index)
