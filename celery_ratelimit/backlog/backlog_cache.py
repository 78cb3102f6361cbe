"""What one worker knows of the backlog: a new request of a bucket with parked tasks stands behind these."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Container, Mapping, Sequence
from typing import Any

from .._celery.saved_message import marker_in
from ..limiter.demand import Demand
from ..limits.any_limit import AnyLimit
from ..limits.concurrency import Concurrency
from .backlog import HORIZON, LOOK_APART
from .messages import Bucket

__all__ = ["BacklogCache"]

#: Seconds until an empty bucket is polled after a park, at least: tasks that are parked together leave together.
SOON = 0.05
#: Seconds that a return takes, and the share of the rest of the time before the first turn after which to poll.
BACK, LOOK_SHARE = 0.15, 0.75
#: Seconds until the last turn that was given out, above which a new request is parked without asking.
CLOSED = 0.1
#: Buckets that are remembered. Requests of others ask their limits first.
MOST_KNOWN = 10_000


class BacklogCache:
    """The buckets in which tasks are parked, as far as one worker knows.

    Args:
        limits: by name. A lease may be free sooner than was foreseen: the turns of a concurrency limit are not known.
    """

    def __init__(self, limits: Mapping[str, AnyLimit]) -> None:
        self._limits = limits
        self._occupied: OrderedDict[Bucket, None] = OrderedDict()
        self._turns: OrderedDict[Bucket, float] = OrderedDict()  # of the last task that left

    def note(self, bucket: Bucket) -> None:
        """Tasks are parked there."""
        self._occupied[bucket] = None
        self._occupied.move_to_end(bucket)
        if len(self._occupied) > MOST_KNOWN:
            self._occupied.popitem(last=False)

    def note_turn(self, bucket: Bucket, at: float) -> None:
        """A task that has left has its turn at that time: a task that is parked from now on has a later one."""
        limit = self._limits.get(bucket[0])
        if limit is None or isinstance(limit, Concurrency):
            return
        self._turns[bucket] = max(at, self._turns.get(bucket, 0.0))
        self._turns.move_to_end(bucket)
        if len(self._turns) > MOST_KNOWN:
            self._turns.popitem(last=False)

    def note_coming(self, message: Any, seconds: float) -> None:
        """A message comes back, to have its turn in so many seconds: it has just left the backlog."""
        marker = marker_in(message)
        if "lot" in marker and not marker.get("again"):  # else it was sent back for another reason
            name, key = marker["lot"]
            self.note_turn((name, key), time.monotonic() + min(seconds, HORIZON))

    def is_closed(self, bucket: Bucket) -> bool:
        """Whether a new request has no turn soon: tasks that have left have theirs before, even if none is parked."""
        return self._turns.get(bucket, 0.0) - time.monotonic() > CLOSED

    def forget_turns(self, names: Container[str]) -> None:
        """These limits have changed: the turns are void."""
        for bucket in [bucket for bucket in self._turns if bucket[0] in names]:
            del self._turns[bucket]

    def forget(self, bucket: Bucket) -> None:
        self._occupied.pop(bucket, None)

    def clear(self) -> None:
        self._occupied.clear()

    def lot_of(self, demands: Sequence[Demand]) -> Demand | None:
        """The demand whose bucket has parked tasks: a new request stands behind them."""
        for demand in demands if self._occupied or self._turns else ():
            bucket = demand.name, demand.key
            if bucket in self._occupied or self.is_closed(bucket):
                return demand
        return None

    def looks_in(self, bucket: Bucket) -> float:
        """Seconds until a poll after a task is parked in an empty bucket."""
        turn = self._turns.get(bucket, 0.0) - time.monotonic()
        return min(LOOK_APART, max(SOON, LOOK_SHARE * (turn - BACK)))
