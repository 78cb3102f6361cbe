"""A limit for each tenant, closed for most of them: what is parked is read and looked after."""

from __future__ import annotations

from benchmarks import TASK
from benchmarks.apps import make_app, work
from celery_ratelimit import Limit, RateLimitedTask

app = make_app()
app.conf.ratelimit_url = app.conf.broker_url


@app.task(name=f"{TASK}.tenant", base=RateLimitedTask, limits=Limit("1/h", key="{tenant}"))
def tenant(index: int, tenant: str) -> None:
    work(index)


@app.task(name=f"{TASK}.heavy", base=RateLimitedTask, limits="300/s")
def heavy(index: int, text: str) -> None:
    work(index)
