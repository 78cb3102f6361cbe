"""Which lots a worker knows to be occupied: what comes now stands behind others there."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Container, Sequence

from ..limiter.demand import Demand
from .parked import Bucket

__all__ = ["Occupied"]

#: Seconds for which newcomers wait in the worker for others, to be parked together: at the most; and as a share of the
#: time for which the first in their lot has been parked, which passes before anybody has its turn who is parked now.
GATHER, GATHER_SHARE = 0.5, 0.5
#: Seconds until the turn of the last that was let out from which on whoever comes is parked, and does not ask.
CLOSED = 0.1
#: Seconds for which it is known how long that was.
KNOWN = 2.0
#: Buckets that are known to have parked tasks: of more than that, requests ask their limits first.
MOST_KNOWN = 10_000


class Occupied:
    """The lots in which tasks are parked, as far as one worker knows."""

    def __init__(self) -> None:
        self._waited: OrderedDict[Bucket, tuple[float, float]] = OrderedDict()  # for how long, and when that was so
        self._turns: OrderedDict[Bucket, float] = OrderedDict()  # of the last that was let out here

    def note(self, bucket: Bucket, waited: float) -> None:
        """Tasks are parked there, the first of them for so many seconds."""
        self._waited[bucket] = waited, time.monotonic()
        self._waited.move_to_end(bucket)
        if len(self._waited) > MOST_KNOWN:
            self._waited.popitem(last=False)

    def note_turn(self, bucket: Bucket, at: float) -> None:
        """The last that this worker has let out of it has its turn at that time."""
        self._turns[bucket] = at
        self._turns.move_to_end(bucket)
        if len(self._turns) > MOST_KNOWN:
            self._turns.popitem(last=False)

    def is_closed(self, bucket: Bucket) -> bool:
        """Whether nobody who comes now has a turn soon: those who were parked have theirs before, if nobody is now."""
        return self._turns.get(bucket, 0.0) - time.monotonic() > CLOSED

    def forget_turns(self, names: Container[str]) -> None:
        """These limits are others now: what was said of turns is void."""
        for bucket in [bucket for bucket in self._turns if bucket[0] in names]:
            del self._turns[bucket]

    def forget(self, bucket: Bucket) -> None:
        self._waited.pop(bucket, None)

    def clear(self) -> None:
        self._waited.clear()

    def lot_of(self, demands: Sequence[Demand]) -> Demand | None:
        """The demand in whose lot tasks are known to be parked: a request that comes now stands behind them."""
        for demand in demands if self._waited or self._turns else ():
            bucket = demand.name, demand.key
            if bucket in self._waited or self.is_closed(bucket):
                return demand
        return None

    def gathers(self, bucket: Bucket) -> float:
        """Seconds for which a newcomer may wait in this worker for others that are parked with it.

        Nobody's turn comes later by that: before whoever comes now others have theirs, for longer than this.
        """
        waited, at = self._waited.get(bucket, (0.0, 0.0))
        return min(GATHER, GATHER_SHARE * waited) if time.monotonic() < at + KNOWN else 0.0
