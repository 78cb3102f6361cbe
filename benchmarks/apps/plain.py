"""No throttle: what Celery itself costs, and what the other variants are measured against."""

from __future__ import annotations

from benchmarks import TASK
from benchmarks.apps import make_app, work

app = make_app()


@app.task(name=TASK)
def call(index: int) -> None:
    work(index)
