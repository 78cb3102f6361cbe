"""Tasks that call two models for three customers, each with a limit of its own beside those of the models."""

from __future__ import annotations

import http.client
import json
import os
from functools import cache
from typing import Any

from celery import Celery

from celery_ratelimit import Limit, RateLimitedTask, UpstreamThrottled

app = Celery("model_api", broker=os.environ.get("CELERY_BROKER_URL", "memory://"))
app.conf.task_ignore_result = True
app.conf.broker_connection_retry_on_startup = True
app.conf.ratelimit_url = app.conf.broker_url

PLANS = {"acme": "120000/m", "bolt": "60000/m"}


def plan_of(customer: str) -> str | None:
    """A customer's tokens a minute; ``None``: what the limit says."""
    return PLANS.get(customer)


app.conf.ratelimit_quotas = {
    "requests": Limit("240/m", key="{model}", headroom=0.02),
    "tokens": Limit(  # two of a hundred less than the quotas: calls in flight may take more than was estimated
        "294000/m",
        key="{model}",
        rates={"large": "117600/m"},
        headroom=0.01,
        algorithm="sliding_log",
        cost="estimate",
    ),
    "customers": Limit("30000/m", key="{customer}", rates=plan_of, algorithm="sliding_log", cost="estimate"),
}


@cache
def _connection(_process: int) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(os.environ["MODEL_API"], timeout=10)


@app.task(base=RateLimitedTask, bind=True, limits=["requests", "tokens", "customers"])
def complete(self: Any, model: str, customer: str, tokens: int, estimate: int) -> None:
    """``tokens``: what the endpoint says that the call has taken; ``estimate``: the estimate."""
    connection = _connection(os.getpid())
    connection.request("POST", "/", json.dumps({"model": model, "customer": customer, "tokens": tokens}))
    response = connection.getresponse()
    body = json.loads(response.read())
    if response.status == 429:
        raise UpstreamThrottled.from_response(response, limit="tokens")
    used = body["usage"]["total_tokens"]
    self.settle(tokens=used, customers=used)
