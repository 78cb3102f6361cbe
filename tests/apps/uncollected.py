"""The app of the fleet's tests without the cyclic garbage collector; its workers tell how many requests are left."""

from __future__ import annotations

import gc
from typing import Any

from celery.worker.control import inspect_command
from celery.worker.request import Request

from tests.apps.fleet import app

__all__ = ["app"]

gc.disable()


@inspect_command()  # type: ignore[untyped-decorator]
def requests_left(state: Any) -> int:
    return sum(isinstance(thing, Request) for thing in gc.get_objects())
