"""Two kinds of tasks that have a quota in common, and one each of their own."""

from __future__ import annotations

import os

from benchmarks import TASK
from benchmarks.apps import RATE, make_app, work
from celery_ratelimit import RateLimitedTask

THROTTLE = os.environ.get("BENCH_THROTTLE", "retry")
BURST = int(os.environ.get("BENCH_BURST", "2"))
OWN = int(os.environ.get("BENCH_OWN_BURST", "1"))

app = make_app()
app.conf.ratelimit_url = app.conf.broker_url
app.conf.ratelimit_quotas = {
    "stripe": {"rate": f"{RATE}/s", "burst": BURST},
    "web": {"rate": f"{RATE // 5}/s", "burst": OWN},
    "tasks": {"rate": f"{RATE * 4 // 5}/s", "burst": OWN},
}


@app.task(name=f"{TASK}.web", base=RateLimitedTask, limits=["web", "stripe"], throttle=THROTTLE)
def web(index: int) -> None:
    work(index)


@app.task(name=f"{TASK}.tasks", base=RateLimitedTask, limits=["tasks", "stripe"], throttle=THROTTLE)
def tasks(index: int) -> None:
    work(index)
