"""Tasks of some seconds that are acknowledged late, beneath a rate; ``BENCH_LEASES``: beneath a number of leases."""

from __future__ import annotations

import os
import time

from benchmarks import TASK
from benchmarks.apps import RATE, make_app, work
from celery_ratelimit import Concurrency, RateLimitedTask

app = make_app()
app.conf.ratelimit_url = app.conf.broker_url
leases = int(os.environ.get("BENCH_LEASES", "0"))


@app.task(
    name=TASK,
    base=RateLimitedTask,
    limits=Concurrency(leases) if leases else f"{RATE}/s",
    throttle=os.environ.get("BENCH_THROTTLE", "retry"),
    acks_late=True,
)
def call(index: int) -> None:
    work(index)
    time.sleep(float(os.environ["BENCH_SECONDS"]))
