"""Limited tasks beside unlimited ones that take a while."""

from __future__ import annotations

import os
import time

from benchmarks import TASK
from benchmarks.apps import RATE, make_app, work
from celery_ratelimit import RateLimitedTask

app = make_app()
app.conf.ratelimit_url = os.environ.get("BENCH_STORE", app.conf.broker_url)
app.conf.worker_prefetch_multiplier = int(os.environ.get("BENCH_PREFETCH", "4"))
app.conf.task_acks_late = bool(os.environ.get("BENCH_LATE"))


@app.task(
    name=TASK,
    base=RateLimitedTask,
    limits=f"{RATE}/s",
    throttle=os.environ.get("BENCH_THROTTLE", "retry"),
    inline_wait=float(os.environ["BENCH_INLINE"]) if "BENCH_INLINE" in os.environ else None,
)
def call(index: int) -> None:
    work(index)


@app.task(name=f"{TASK}.plain")
def plain(index: int, seconds: float) -> None:
    work(index)
    time.sleep(seconds)
