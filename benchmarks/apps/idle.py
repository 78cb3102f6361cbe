"""Tasks with as many limits as ``$BENCH_LIMITS`` says."""

from __future__ import annotations

import os

from benchmarks import TASK
from benchmarks.apps import RATE, make_app, work
from celery_ratelimit import RateLimitedTask

app = make_app()
app.conf.ratelimit_url = os.environ.get("BENCH_STORE", app.conf.broker_url)

for number in range(int(os.environ.get("BENCH_LIMITS", "1"))):

    @app.task(
        name=f"{TASK}.{number}" if number else TASK,
        base=RateLimitedTask,
        limits=f"{RATE}/s",
        throttle=os.environ.get("BENCH_THROTTLE", "retry"),
    )
    def call(index: int) -> None:
        work(index)
