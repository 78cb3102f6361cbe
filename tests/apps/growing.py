"""The fleet's app without the cyclic garbage collector, whose worker says what it has in memory.

And tasks with limits of two shapes, which are so wide that no task waits.
"""

from __future__ import annotations

import gc
import sys
from typing import Any

from celery.worker.control import inspect_command
from celery.worker.request import Request

from celery_ratelimit import Concurrency, Limit, RateLimitedTask
from tests.apps.fleet import app, note

gc.disable()
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


@inspect_command()  # type: ignore[untyped-decorator]
def requests_left(state: Any) -> int:
    return sum(isinstance(thing, Request) for thing in gc.get_objects())
