"""celery-heimdall, with one key for the task: the way in which it can limit the task as a whole."""

from __future__ import annotations

from celery_heimdall import HeimdallTask, RateLimit

from benchmarks import TASK
from benchmarks.apps import RATE, make_app, work

app = make_app()


@app.task(
    name=TASK,
    base=HeimdallTask,
    heimdall={"rate_limit": RateLimit((RATE, 1)), "key": lambda args, kwargs: "call"},
)
def call(index: int) -> None:
    work(index)
