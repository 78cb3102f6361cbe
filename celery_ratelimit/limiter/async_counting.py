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
        self._timer: asyncio.TimerHandle | None = None

    def _later(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(seconds, lambda: self._asker.start(self.send()))

    async def send(self) -> None:
        """Send what there is. Raises nothing but a cancellation."""
        await self._send()
        if self._asker.core.shadows.pending and not self._refusals:
            self.counter.again()

    async def aclose(self) -> None:
        """Send what there is, for the last time unless more is counted."""
        if self._timer is not None:
            self._timer.cancel()
        await self._send()

    async def _send(self) -> None:
        parts = self.counter.take()
        if not (parts or self.counter.arrivals or self._asker.core.shadows.pending) or self._refusals:
            return
        try:
            await self._asker.drive(tell_all(self._asker.core, self.counter, parts))
        except Exception as error:
            self._refusals.note(error)
