"""The store's time in one process. Tasks' slots are times of this clock, not of the machine's."""

from __future__ import annotations

import time
from collections.abc import Callable

from ..limiter.sync_store import StoreRunner
from .tuning import CLOCK_FRESH

__all__ = ["StoreClock", "read_time_us"]


class StoreClock:
    """Computes the store's time from ``time.monotonic`` and the last reading of the store's clock.

    A reading is off by at most half of its round trip.

    Args:
        read: returns the store's time in microseconds since 1970; None: the store does not answer.
    """

    def __init__(self, read: Callable[[], int | None]) -> None:
        self._read = read
        self._offset_us: int | None = None
        self._read_at = float("-inf")

    def now_us(self) -> int | None:
        """Microseconds since 1970 by the store's clock; None: the store has never answered."""
        began = time.monotonic()
        if began - self._read_at >= CLOCK_FRESH:
            self._read_at = began
            now_us = self._read()
            if now_us is not None:
                self._offset_us = now_us - round((began + time.monotonic()) / 2 * 1e6)
        return None if self._offset_us is None else self._offset_us + round(time.monotonic() * 1e6)

    def now(self) -> float:
        """Seconds since 1970; by this machine's clock if the store has never answered."""
        now_us = self.now_us()
        return time.time() if now_us is None else now_us / 1e6

    def slot_in(self, seconds: float) -> int | None:
        """The store's time ``seconds`` from now."""
        now_us = self.now_us()
        return None if now_us is None else now_us + round(seconds * 1e6)

    def seconds_until(self, slot_us: int) -> float | None:
        """Seconds until a slot; negative if it is past; None: the store's time is not known."""
        now_us = self.now_us()
        return None if now_us is None else (slot_us - now_us) / 1e6


def read_time_us(asker: StoreRunner) -> int | None:
    """Read the store's time, in microseconds since 1970; of a cluster one node's. None: in tests, without a store.

    Raises:
        StoreUnavailable: the store does not answer.
    """
    if asker.is_fake:
        return None
    if asker.is_cluster:
        seconds, us = next(iter(asker.store(lambda: asker.client.time(target_nodes="primaries")).values()))
    else:
        seconds, us = asker.store(asker.client.time)
    return int(seconds) * 1_000_000 + int(us)
