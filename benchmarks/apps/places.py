"""Tasks of which only some may run at once; ``BENCH_THROTTLE=none``: as many as there are processes."""

from __future__ import annotations

import os
import time
from typing import Any

from benchmarks import TASK
from benchmarks.apps import RATE, make_app, work
from celery_ratelimit import Concurrency, RateLimitedTask

app = make_app()
throttle = os.environ.get("BENCH_THROTTLE", "retry")
limited: dict[str, Any] = {"base": RateLimitedTask, "limits": Concurrency(RATE), "throttle": throttle}


@app.task(name=TASK, **({} if throttle == "none" else limited))
def call(index: int) -> None:
    work(index)
    time.sleep(0.2)
