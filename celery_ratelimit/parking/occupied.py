"""Which lots a worker knows to be occupied: what comes now stands behind others there."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

from .._celery.saved_message import marker_in
from ..limiter.demand import Demand
from ..limits.any_limit import AnyLimit
from ..limits.concurrency import Concurrency
from .lot import HORIZON, LOOK_APART
from .parked import Bucket

__all__ = ["Occupied"]

#: Seconds for which newcomers wait in the worker for others, to be parked together: at the most; and as a share of the
#: time for which the first in their lot has been parked, which passes before anybody has its turn who is parked now.
GATHER, GATHER_SHARE = 1.0, 0.5
#: Seconds for which they wait where nobody has been parked for long, but turns are given away for some time: at the
#: most, since those that others park meanwhile leave before them; and before the turns that are left, so that there is
#: time for a look at the lot and for the way back.
GATHER_TURN, AHEAD = 0.1, 0.25
#: Seconds after which a lot is looked at that was empty, at the soonest: tasks that are parked together leave together.
SOON = 0.05
#: Seconds that the way back takes, and the share of what is left before the first turn after which there is a look.
BACK, LOOK_SHARE = 0.15, 0.75
#: Seconds until the turn of the last that was let out from which on some worker is at it: tasks leave a second before.
SEEN_TO = 0.6
#: Seconds until the turn of the last that was let out from which on whoever comes is parked, and does not ask.
CLOSED = 0.1
#: Seconds for which it is known how long that was.
KNOWN = 2.0
#: Buckets that are known to have parked tasks: of more than that, requests ask their limits first.
MOST_KNOWN = 10_000


class Occupied:
    """The lots in which tasks are parked, as far as one worker knows.

    Args:
        limits: by name. Places may be free sooner than was foreseen: nothing is known of their turns.
    """

    def __init__(self, limits: Mapping[str, AnyLimit]) -> None:
        self._limits = limits
        self._waited: OrderedDict[Bucket, tuple[float, float]] = OrderedDict()  # for how long, and when that was so
        self._turns: OrderedDict[Bucket, float] = OrderedDict()  # of the last that was let out
        self._last: dict[str, float] = {}  # by limit

    def note(self, bucket: Bucket, waited: float) -> None:
        """Tasks are parked there, the first of them for so many seconds."""
        self._waited[bucket] = waited, time.monotonic()
        self._waited.move_to_end(bucket)
        if len(self._waited) > MOST_KNOWN:
            self._waited.popitem(last=False)

    def note_turn(self, bucket: Bucket, at: float) -> None:
        """One that was let out of it has its turn at that time: who is parked from now on has a later one."""
        limit = self._limits.get(bucket[0])
        if limit is None or isinstance(limit, Concurrency):
            return
        self._turns[bucket] = max(at, self._turns.get(bucket, 0.0))
        self._last[bucket[0]] = max(at, self._last.get(bucket[0], 0.0))
        self._turns.move_to_end(bucket)
        if len(self._turns) > MOST_KNOWN:
            self._turns.popitem(last=False)

    def note_coming(self, message: Any, seconds: float) -> None:
        """A message comes back, to have its turn in so many seconds: some worker has just let it out."""
        marker = marker_in(message)
        if "lot" in marker and not marker.get("again"):  # else it was sent back for another reason
            name, key = marker["lot"]
            self.note_turn((name, key), time.monotonic() + min(seconds, HORIZON))

    def is_closed(self, bucket: Bucket) -> bool:
        """Whether nobody who comes now has a turn soon: those who were parked have theirs before, if nobody is now."""
        return self._turns.get(bucket, 0.0) - time.monotonic() > CLOSED

    def are_seen_to(self, names: Iterable[str]) -> bool:
        """Whether some worker has just let tasks of each of these limits out: it looks for all of their lots."""
        by = time.monotonic() + SEEN_TO
        return all(self._last.get(name, 0.0) > by for name in names)

    def forget_turns(self, names: Container[str]) -> None:
        """These limits are others now: what was said of turns is void."""
        for bucket in [bucket for bucket in self._turns if bucket[0] in names]:
            del self._turns[bucket]
        for name in [name for name in self._last if name in names]:
            del self._last[name]

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

    def looks_in(self, bucket: Bucket) -> float:
        """Seconds after which the lot has to be looked at if nobody was parked in it."""
        turn = self._turns.get(bucket, 0.0) - time.monotonic()
        return min(LOOK_APART, max(SOON, LOOK_SHARE * (turn - BACK)))

    def gathers(self, bucket: Bucket) -> float:
        """Seconds for which a newcomer may wait in this worker for others that are parked with it.

        No turn is lost by that: before whoever comes now others have theirs, for longer than this.
        """
        now, (waited, at) = time.monotonic(), self._waited.get(bucket, (0.0, 0.0))
        before = GATHER_SHARE * waited if now < at + KNOWN else 0.0
        turn = max(0.0, self._turns.get(bucket, 0.0) - now - AHEAD)
        return min(GATHER, before + min(GATHER_TURN, turn))
