"""Tasks with as many limits as ``$BENCH_LIMITS`` says."""

from __future__ import annotations

import os

from benchmarks import TASK
from benchmarks.apps import make_app, work
from celery_ratelimit import RateLimitedTask

app = make_app()
app.conf.ratelimit_url = os.environ["BENCH_STORE"]

for number in range(int(os.environ.get("BENCH_LIMITS", "1"))):

    @app.task(name=TASK if number == 0 else f"{TASK}.{number}", base=RateLimitedTask, limits="5/s")
    def call(index: int) -> None:
        work(index)
