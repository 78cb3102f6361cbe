"""Places under Concurrency that blocks of an event loop hold: renewed while they run, given back at their end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from ..errors import STORE_TROUBLES
from ..limits.decision import Decision
from .async_asker import AsyncAsker
from .demand import leased
from .leases import RENEWALS, renewal_pause

__all__ = ["AsyncPlaces"]

logger = logging.getLogger("celery_ratelimit")


class AsyncPlaces:
    """As :class:`~celery_ratelimit.limiter.leases.Leases`, with a task of the event loop for each block.

    Args:
        asker: the way to the store.
    """

    def __init__(self, asker: AsyncAsker) -> None:
        self._asker = asker

    @asynccontextmanager
    async def held(self, decision: Decision) -> AsyncIterator[None]:
        """Its places are held for as long as the block runs."""
        pause = renewal_pause(decision.demands)
        renewing = self._asker.start(self._keep_renewing(decision, pause))
        try:
            yield
        finally:
            renewing.cancel()
            await asyncio.shield(self._asker.start(self._end(decision, pause)))

    async def _renew(self, decision: Decision) -> bool:
        leases = [(demand, decision.id) for demand in leased(decision.demands)]
        return all(await self._asker.drive(self._asker.core.renew(leases)))

    async def _release(self, decision: Decision) -> None:
        core = self._asker.core
        await self._asker.drive(core.release(decision.demands, id=decision.id, granted_at=decision.granted_at))

    async def _keep_renewing(self, decision: Decision, pause: float) -> None:
        kept, said = True, ""
        while kept:
            await asyncio.sleep(pause)
            try:
                kept, said = await self._renew(decision), ""
            except STORE_TROUBLES as error:
                logger.debug("lease not renewed this time: %r", error)
            except Exception as error:  # see Leases
                if said != repr(error):
                    said = repr(error)
                    logger.error("A lease was not renewed, and is tried again", exc_info=True)
        logger.warning(
            "The lease of %s under %s was lost while it is in use: the store was out of reach for too long",
            *(decision.id, ", ".join(repr(demand.name) for demand in leased(decision.demands))),
        )

    async def _end(self, decision: Decision, pause: float, tries: int = RENEWALS) -> None:
        """Give the places back; if the store does not answer, later, until they have expired by themselves."""
        try:
            await self._release(decision)
        except STORE_TROUBLES as error:
            logger.debug("places not given back this time: %r", error)
            if tries:
                self._asker.start(self._end_later(decision, pause, tries - 1))

    async def _end_later(self, decision: Decision, pause: float, tries: int) -> None:
        await asyncio.sleep(pause)
        await self._end(decision, pause, tries)
