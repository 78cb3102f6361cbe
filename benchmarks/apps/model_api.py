"""Tasks that call a model API, whose tokens are estimated before the call and settled after it.

The status that is noted for a call is 429 where it was refused; for others, how often the task was retried.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import time
from functools import cache
from typing import Any

from benchmarks import TASK
from benchmarks.apps import _recorder, make_app
from celery_ratelimit import Limit, RateLimitedTask, UpstreamThrottled
from example_project.model_api.endpoint import Quota

QUOTAS = {"large": Quota(requests=600, tokens=120_000), "small": Quota(requests=300, tokens=300_000)}
CUSTOMERS = ("a", "b", "c")

app = make_app()
app.conf.ratelimit_url = app.conf.broker_url


def model_of(index: int) -> str:
    return "large" if index % 9 < 4 else "small"


def tokens_of(index: int) -> int:
    return random.Random(index).randint(100, 900)


def estimate_of(index: int) -> int:
    """Off by -50 % to +100 %."""
    return round(tokens_of(index) * random.Random(-index - 1).uniform(0.5, 2))


LIMITS = [
    Limit("300/m", name="requests", key=model_of, rates={"large": "600/m"}, headroom=0.02),
    Limit(  # two of a hundred less than the quotas: calls in flight may take more than was estimated
        "294000/m",
        name="tokens",
        key=model_of,
        rates={"large": "117600/m"},
        headroom=0.01,
        algorithm="sliding_log",
        cost=estimate_of,
    ),
]


@cache
def _connection(_process: int) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(os.environ["BENCH_UPSTREAM"], timeout=10)


@app.task(name=TASK, base=RateLimitedTask, limits=LIMITS, bind=True)
def call(self: Any, index: int) -> None:
    connection, at = _connection(os.getpid()), time.time()
    asked = {"model": model_of(index), "customer": CUSTOMERS[index % 3], "tokens": tokens_of(index)}
    connection.request("POST", "/", json.dumps(asked), {"content-type": "application/json"})
    response = connection.getresponse()
    usage = json.loads(response.read())["usage"]
    _recorder().note(index, at, 429 if response.status == 429 else self.request.retries)
    if response.status == 429:
        raise UpstreamThrottled.from_response(response, limit="tokens")
    self.settle(tokens=usage["total_tokens"])
