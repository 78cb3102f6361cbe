"""Whether the store has memory for more parked tasks: parking stops before the store is full, and refuses to park."""

from __future__ import annotations

import logging
from time import monotonic

from ..store_calls.store_calls import Asks
from . import tuning
from .backlog import Backlog

__all__ = ["StoreMemory", "memory_warning"]

logger: logging.Logger = logging.getLogger("celery_ratelimit")


def memory_warning(used: int, most: int) -> str:
    """That no more tasks are parked, by the store's bytes in use and its ``maxmemory``; empty: they are."""
    if used < tuning.FULL * most or not most:
        return ""
    return (
        f"the store has used {used / most:.0%} of its maxmemory, so no task is parked: throttled tasks stay at the "
        "broker, as with throttle='wait', until it has room. Raise maxmemory there"
    )


class StoreMemory:
    """The memory of the store, as one worker knows it. Each of the others is thought to park as much as this one."""

    def __init__(self, backlog: Backlog) -> None:
        self._backlog = backlog
        self.is_full: bool = False
        self._used = self._most = 0
        self._looked_at = self._warned_at = float("-inf")

    def note_parked(self, size: int) -> None:
        """A message of that size was parked. A fleet counts as two workers at least."""
        workers = max(2, self._backlog.register.workers)
        self.note(self._used + (size + tuning.PARKED_BYTES) * workers, self._most)

    def look(self, *, is_idle: bool) -> Asks[None]:
        """Ask the store, if it is time to. A worker at rest does not ask, unless the store was full."""
        if monotonic() >= self._looked_at + tuning.HEARTBEAT and (self.is_full or not is_idle):
            self._looked_at = monotonic()
            self.note(*(yield self._backlog.memory))

    def note(self, used: int, most: int) -> None:
        """Note bytes in use, and ``maxmemory``."""
        self._used, self._most, warning = used, most, memory_warning(used, most)
        self.is_full = bool(warning)
        if warning and monotonic() >= self._warned_at + tuning.WARNING_INTERVAL:
            self._warned_at = monotonic()
            logger.warning("%s", warning)
