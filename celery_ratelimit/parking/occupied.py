"""Which lots a worker knows to be occupied: what comes now stands behind others there."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Sequence

from ..limiter.demand import Demand
from .parked import Bucket

__all__ = ["Occupied"]

#: Seconds for which newcomers wait in the worker for others, to be parked together: at the most; and as a share of the
#: time for which the first in their lot has been parked, which passes before anybody has its turn who is parked now.
GATHER, GATHER_SHARE = 0.5, 0.5
#: Seconds for which it is known how long that was.
KNOWN = 2.0
#: Buckets that are known to have parked tasks: of more than that, requests ask their limits first.
MOST_KNOWN = 10_000


class Occupied:
    """The lots in which tasks are parked, as far as one worker knows."""

    def __init__(self) -> None:
        self._waited: OrderedDict[Bucket, tuple[float, float]] = OrderedDict()  # for how long, and when that was so

    def note(self, bucket: Bucket, waited: float) -> None:
        """Tasks are parked there, the first of them for so many seconds."""
        self._waited[bucket] = waited, time.monotonic()
        self._waited.move_to_end(bucket)
        if len(self._waited) > MOST_KNOWN:
            self._waited.popitem(last=False)

    def forget(self, bucket: Bucket) -> None:
        self._waited.pop(bucket, None)

    def clear(self) -> None:
        self._waited.clear()

    def lot_of(self, demands: Sequence[Demand]) -> Demand | None:
        """The demand in whose lot tasks are known to be parked: a request that comes now stands behind them."""
        if self._waited:
            for demand in demands:
                if (demand.name, demand.key) in self._waited:
                    return demand
        return None

    def gathers(self, bucket: Bucket) -> float:
        """Seconds for which a newcomer may wait in this worker for others that are parked with it.

        Nobody's turn comes later by that: before whoever comes now others have theirs, for longer than this.
        """
        waited, at = self._waited.get(bucket, (0.0, 0.0))
        return min(GATHER, GATHER_SHARE * waited) if time.monotonic() < at + KNOWN else 0.0
