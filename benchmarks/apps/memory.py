"""A task with limits of the shape that ``$BENCH_SHAPE`` says, which are so wide that no task waits."""

from __future__ import annotations

import os

from benchmarks import TASK
from benchmarks.apps import make_app, work
from celery_ratelimit import Concurrency, Limit, RateLimitedTask

WIDE, BY_KEY = Limit("100000/s", burst=1000), Limit("2/s", name="bench.key", key="{of}")
SHAPES = {
    "none": None,
    "one": WIDE,
    "key": BY_KEY,
    "two": [BY_KEY, WIDE],
    "places": Concurrency(100),
    "log": Limit("100000/s", algorithm="sliding_log"),
}

app = make_app()
app.conf.ratelimit_url = app.conf.broker_url


@app.task(name=TASK, base=RateLimitedTask, limits=SHAPES[os.environ["BENCH_SHAPE"]])
def call(index: int, of: int) -> None:
    work(index)
