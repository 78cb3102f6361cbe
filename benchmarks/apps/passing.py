"""celery_ratelimit with a limit that is never reached: what a task pays for merely being limited."""

from __future__ import annotations

from benchmarks import TASK
from benchmarks.apps import make_app, work
from celery_ratelimit import Limit, RateLimitedTask

app = make_app()
app.conf.ratelimit_url = app.conf.broker_url


@app.task(name=TASK, base=RateLimitedTask, limits=Limit("1000000/s", burst=1000))
def call(index: int) -> None:
    work(index)
