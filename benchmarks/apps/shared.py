"""Tenants that share one limit: each with turns of its own, or in the order in which their tasks came."""

from __future__ import annotations

import os

from benchmarks import TASK
from benchmarks.apps import RATE, make_app, work
from celery_ratelimit import Limit, RateLimitedTask

app = make_app()
app.conf.ratelimit_url = app.conf.broker_url

FAIR = "{tenant}" if os.environ.get("BENCH_FAIR") else None


@app.task(name=TASK, base=RateLimitedTask, limits=Limit(f"{RATE}/s", name="shared", fair=FAIR))
def call(index: int, tenant: str) -> None:
    work(index)
