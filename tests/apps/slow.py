"""The fleet's app with a task that takes long; and, for somebody who looks, with a limit that its workers lack."""

from __future__ import annotations

import os
import time

import redis

from celery_ratelimit import Limit, RateLimitedTask
from tests.apps.fleet import app

__all__ = ["app"]


@app.task(base=RateLimitedTask, limits=Limit("20/s", burst=20, name="slow"))
def sleep(index: int, seconds: float) -> int:
    time.sleep(seconds)
    return index


@app.task(base=RateLimitedTask, limits=Limit("20/s", burst=20, name="slow"))
def unacknowledged() -> int:
    """Messages that the broker, which is a Redis, has yet to deliver, or to see acknowledged."""
    with redis.Redis.from_url(app.conf.broker_url) as client:
        return int(client.llen("celery")) + int(client.hlen("unacked"))


if os.environ.get("TEST_NEWER"):

    @app.task(base=RateLimitedTask, limits=Limit("5/s", name="newer"))
    def newer() -> None: ...
