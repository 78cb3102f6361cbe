"""A limit for each tenant, closed for most of them: what is parked is read and looked after."""

from __future__ import annotations

import gc
import os
import time
from typing import Any

from celery.signals import worker_ready

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


class TimedPoller:
    """Notes each turn of the worker's loop: from when it has heard of something until it waits for the next.

    Its time, its CPU, and how much of that Python has spent on the collection of garbage.
    """

    def __init__(self, poller: Any, path: str) -> None:
        self._poller, self._since, self._collected = poller, 0.0, 0.0
        gc.callbacks.append(self._collects)
        self._file = open(path, "a", buffering=1)  # noqa: SIM115  (for as long as the worker lives)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._poller, name)

    def _collects(self, phase: str, info: Any) -> None:
        self._collected += time.thread_time() * (1 if phase == "stop" else -1)

    def poll(self, timeout: float) -> Any:
        if self._since:
            wall, cpu = time.monotonic() - self._since, time.thread_time() - self._cpu
            if wall > 0.001:
                self._file.write(f"{wall:.4f} {cpu:.4f} {self._collected:.4f}\n")
        events = self._poller.poll(timeout)
        self._collected = 0.0
        self._since, self._cpu = time.monotonic(), time.thread_time()
        return events


@worker_ready.connect
def time_turns(sender: Any, **_: Any) -> None:
    if "BENCH_TURNS" in os.environ:
        sender.hub.poller = TimedPoller(sender.hub.poller, os.environ["BENCH_TURNS"])
