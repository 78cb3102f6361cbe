"""A remote control command for the tests' workers: how many tasks the pool has that its worker waits for."""

from __future__ import annotations

from typing import Any

from celery.worker.control import inspect_command


@inspect_command()  # type: ignore[untyped-decorator]
def pool_jobs(state: Any) -> int:
    return len(getattr(state.consumer.pool._pool, "_cache", ()))  # of prefork; others hand a task over in no time
