"""Counts, from outside, how often each task was delivered. Only the demo loads it (``worker -I``).

A task whose message is sent once is received once; whatever is sent again, by ``retry`` or otherwise, is
received again. The count is the worker's own (``task_received``), so it is taken alike in both runs.
"""

from __future__ import annotations

import functools
import os
from typing import Any

import redis
from celery.signals import task_received

KEY = "demo:deliveries"


@functools.cache
def _store() -> redis.Redis:
    return redis.Redis.from_url(os.environ["MEASURE_URL"])


@task_received.connect
def count_delivery(request: Any, **_: Any) -> None:
    # In the worker's main process, some 0.1 ms a message: too little to matter at a few hundred a second.
    _store().hincrby(KEY, request.id, 1)


def deliveries(url: str) -> int:
    """All deliveries so far, of all tasks."""
    with redis.Redis.from_url(url) as store:
        return sum(int(count) for count in store.hvals(KEY))
