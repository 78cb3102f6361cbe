"""celery_ratelimit with ``adaptive=True``, and an upstream that enforces a quota of its own and says nothing about it.

The status that is noted for a call is 429 where it was refused; for others, how often the task was retried.
"""

from __future__ import annotations

import http.client
import os
import time
from functools import cache
from typing import Any

from benchmarks import TASK
from benchmarks.apps import RATE, _recorder, make_app
from celery_ratelimit import Limit, RateLimitedTask, UpstreamThrottled

app = make_app()
app.conf.ratelimit_url = app.conf.broker_url


@cache
def _connection(_process: int) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(os.environ["BENCH_UPSTREAM"], timeout=10)


@app.task(name=TASK, base=RateLimitedTask, limits=Limit(f"{RATE}/s", adaptive=True), bind=True)
def call(self: Any, index: int) -> None:
    connection, at = _connection(os.getpid()), time.time()
    connection.request("GET", "/")
    response = connection.getresponse()
    response.read()
    _recorder().note(index, at, 429 if response.status == 429 else self.request.retries)
    if response.status == 429:
        raise UpstreamThrottled.from_response(response)
