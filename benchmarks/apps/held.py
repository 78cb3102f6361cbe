"""A task of 0.1 s with several limits: ``BENCH_LIMITS``, of "rate", "log", "window" and "places"."""

from __future__ import annotations

import os
import time

from benchmarks import TASK
from benchmarks.apps import RATE, make_app, work
from celery_ratelimit import Concurrency, Limit, RateLimitedTask

LIMITS = {
    "rate": Limit(f"{RATE}/s", name="rate"),
    "log": Limit(f"{8 * RATE}/10s", algorithm="sliding_log", name="log"),
    "window": Limit(f"{8 * RATE}/10s", algorithm="sliding_window", name="window"),
    "places": Concurrency(8, name="places"),
}

app = make_app()


@app.task(
    name=TASK,
    base=RateLimitedTask,
    limits=[LIMITS[name] for name in os.environ.get("BENCH_LIMITS", "rate,log,places").split(",")],
    throttle=os.environ.get("BENCH_THROTTLE", "retry"),
)
def held(index: int) -> None:
    work(index)
    time.sleep(0.1)
