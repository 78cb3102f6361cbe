"""Calls of a model's API: requests and tokens a minute for each model, shared fairly by three customers.

``celery -A example_project.model_api worker``, beside ``python -m example_project.model_endpoint 8077``.
``python -m benchmarks.model_api`` runs both, measures and plots.
"""

from __future__ import annotations

import os
from typing import Any

import httpx
from celery import Celery

from celery_ratelimit import Limit, RateLimitedTask, UpstreamThrottled

app = Celery("model_api", broker=os.environ.get("BENCH_BROKER", "redis://localhost:6379/0"))
app.conf.update(
    ratelimit_url=app.conf.broker_url,
    ratelimit_quotas={
        "requests": Limit("400/m", burst=5, key="{model}", rates={"large": "300/m"}),
        "tokens": Limit(
            "300000/m",
            burst=10_000,
            key="{model}",
            rates={"large": "150000/m"},
            cost="estimate",
            fair="{customer}",
        ),
    },
)
ADDRESS = os.environ.get("BENCH_UPSTREAM", "127.0.0.1:8077")


@app.task(base=RateLimitedTask, limits=["requests", "tokens"], bind=True)
def complete(self: Any, model: str, customer: str, estimate: int, tokens: int) -> None:
    """``estimate``: of the tokens, before the call; ``tokens``: that it uses in the end."""
    response = httpx.post(f"http://{ADDRESS}/{model}", json={"customer": customer, "tokens": tokens}, timeout=30)
    if response.status_code == 429:
        raise UpstreamThrottled.from_response(response, limit="tokens")
    self.settle(tokens=response.json()["tokens"])
