"""Connections that callers of one event loop share, and wait for, whoever of them gives up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from redis.asyncio import BlockingConnectionPool

__all__ = ["SharedPool"]


class SharedPool(BlockingConnectionPool):
    """redis-py's pool; a caller that gives up in the moment in which it is woken wakes the next.

    ``asyncio.Condition``, by which it waits, does so from Python 3.13. Before, the connection stays free while the
    others wait until somebody gives back another, or until their time is up.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._condition = _PassedOn()


class _PassedOn(asyncio.Condition):
    """What is there for one who does not want it any more is there for the next."""

    async def wait_for(self, predicate: Callable[[], Any]) -> Any:
        try:
            return await super().wait_for(predicate)
        except BaseException:  # a cancellation, or its time is up; it has the lock again
            if predicate():
                self.notify()
            raise
