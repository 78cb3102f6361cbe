"""What one event loop counts goes to the store: see :mod:`~celery_ratelimit.limiter.counting`."""

from __future__ import annotations

import asyncio

from ..counts.counter import Counter
from .async_asker import AsyncAsker
from .counted import tell_all
from .counting import Refusals

__all__ = ["AsyncCounting"]


class AsyncCounting:
    """Counts for one event loop, and sends it.

    Args:
        asker: the way to the store.

    Attributes:
        counter: counts.
    """

    def __init__(self, asker: AsyncAsker) -> None:
        self._asker = asker
        self.counter = Counter(self._later)
        self._refusals = Refusals()

    def _later(self, seconds: float) -> None:
        asyncio.get_running_loop().call_later(seconds, lambda: self._asker.start(self.send()))

    async def send(self) -> None:
        """Send what there is. Raises nothing but a cancellation."""
        parts = self.counter.take()
        if not (parts or self.counter.arrivals) or self._refusals:
            return
        try:
            await self._asker.drive(tell_all(self._asker.core, self.counter, parts))
        except Exception as error:
            self._refusals.note(error)
