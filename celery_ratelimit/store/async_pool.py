"""A pool of connections for which callers of one event loop wait; a caller may give up without harm to the others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from redis.asyncio import BlockingConnectionPool

__all__ = ["SharedPool"]


class SharedPool(BlockingConnectionPool):
    """redis-py's pool, except that a caller that gives up just when it is woken wakes the next one.

    Its ``asyncio.Condition`` does so from Python 3.13 on. Before, the connection stays unused while other callers wait
    until another connection is returned, or until they time out.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._condition = _PassedOn()


class _PassedOn(asyncio.Condition):
    """A condition that wakes the next waiter if the woken one gives up."""

    async def wait_for(self, predicate: Callable[[], Any]) -> Any:
        try:
            return await super().wait_for(predicate)
        except BaseException:  # a cancellation, or its time is up; it has the lock again
            if predicate():
                self.notify()
            raise
