"""Tasks with limits of two shapes, which are so wide that no task waits; a worker says how many blocks it has."""

from __future__ import annotations

import gc
import sys
from typing import Any

from celery.worker.control import inspect_command

from celery_ratelimit import Concurrency, Limit, RateLimitedTask
from tests.apps.fleet import app, note

WIDE = Limit("100000/s", burst=1000)


@app.task(base=RateLimitedTask, limits=[Limit("100/s", name="by.key", key="{of}"), WIDE])
def by_key(index: int, of: int) -> None:
    note(index)


@app.task(base=RateLimitedTask, limits=[Concurrency(100), WIDE])
def place(index: int, of: int) -> None:
    note(index)


@inspect_command()  # type: ignore[untyped-decorator]
def blocks(state: Any) -> int:
    """How many pieces of memory Python has in use."""
    gc.collect()
    return sys.getallocatedblocks()
