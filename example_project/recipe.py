"""The usual recipe, for comparison: a counter per second in Redis, and ``retry`` when it is full.

An app of its own without celery_ratelimit, so that the demo measures the recipe and nothing else.
"""

from __future__ import annotations

import contextlib
import os
import time

import redis
from celery import Celery, Task

from .client import Refused, call

RATE = 100

app = Celery("recipe", broker=os.environ["CELERY_BROKER_URL"])
app.conf.update(task_ignore_result=True, broker_connection_retry_on_startup=True)

store = redis.Redis.from_url(os.environ["RATELIMIT_URL"])


@app.task(bind=True, max_retries=None)
def charge(self: Task, order_id: int) -> None:
    """At most 100 calls in a second of the clock; the rest try again a second later, all together."""
    key = f"charges:{int(time.time())}"
    with store.pipeline() as pipeline:
        pipeline.incr(key)
        pipeline.expire(key, 2)
        count, _ = pipeline.execute()
    if count > RATE:
        raise self.retry(countdown=1)
    with contextlib.suppress(Refused):  # the upstream has counted it, and that is what the demo shows
        call(f"/charges/{order_id}")
