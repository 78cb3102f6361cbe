"""The fleet's app in a worker that notes of each task that it starts whether it is with a process then, or waits for
the worker's loop though one has nothing to do.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from celery_ratelimit._celery import Worker
from tests.apps.fleet import app

__all__ = ["app"]

_start = Worker.start


def _started(self: Worker, request: Any, permit: Mapping[str, Any] | None = None) -> None:
    _start(self, request, permit)
    pool = self._consumer.pool._pool
    waits = pool.outbound_buffer and len(pool._busy_workers) < len(pool._all_inqueues)
    with open(os.path.join(os.environ["TEST_RECORDS"], "started"), "a") as file:
        file.write("waits\n" if waits else "written\n")


Worker.start = _started  # type: ignore[method-assign]
