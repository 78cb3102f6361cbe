"""celery-heimdall as in the example of its README: no key, so each set of arguments has its own limit."""

from __future__ import annotations

from celery_heimdall import HeimdallTask, RateLimit

from benchmarks import TASK
from benchmarks.apps import RATE, make_app, work

app = make_app()


@app.task(name=TASK, base=HeimdallTask, heimdall={"rate_limit": RateLimit((RATE, 1))})
def call(index: int) -> None:
    work(index)
