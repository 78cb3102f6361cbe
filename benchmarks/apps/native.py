"""Celery's own ``rate_limit``. It is per worker, so the fleet's rate has to be divided by the workers."""

from __future__ import annotations

from benchmarks import TASK
from benchmarks.apps import RATE, WORKERS, make_app, work

app = make_app()


@app.task(name=TASK, rate_limit=f"{RATE / WORKERS:g}/s")
def call(index: int) -> None:
    work(index)
