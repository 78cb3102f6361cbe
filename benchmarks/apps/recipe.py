"""The usual recipe: a counter per second in Redis, and ``retry(countdown=1)`` when it is used up."""

from __future__ import annotations

import time
from functools import cache

import redis
from celery import Task

from benchmarks import TASK
from benchmarks.apps import RATE, make_app, work

app = make_app()


@cache
def _store() -> redis.Redis:
    return redis.Redis.from_url(app.conf.broker_url)


@app.task(name=TASK, bind=True, max_retries=None)
def call(self: Task, index: int) -> None:
    key = f"calls:{int(time.time())}"
    with _store().pipeline(transaction=False) as pipe:
        pipe.incr(key)
        pipe.expire(key, 5)
        count, _ = pipe.execute()
    if count > RATE:
        raise self.retry(countdown=1)
    work(index)
