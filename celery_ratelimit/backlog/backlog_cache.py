"""Remembers in one worker which buckets have parked tasks: a new request of such a bucket goes behind them."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Container, Mapping, Sequence
from typing import Any

from .._celery.saved_message import marker_in
from ..limiter.limit_request import LimitRequest
from ..limits.any_limit import AnyLimit
from ..limits.concurrency import Concurrency
from . import tuning
from .messages import Bucket

__all__ = ["BacklogCache"]


class BacklogCache:
    """The buckets that have parked tasks, as far as one worker knows.

    Args:
        limits: by name. The cache has no turns of concurrency limits: a lease may be released earlier than expected.
    """

    def __init__(self, limits: Mapping[str, AnyLimit]) -> None:
        self._limits = limits
        self._occupied: OrderedDict[Bucket, None] = OrderedDict()
        self._turns: OrderedDict[Bucket, float] = OrderedDict()  # of the last task that left

    def note(self, bucket: Bucket) -> None:
        """Remember that tasks are parked in a bucket."""
        _remember(self._occupied, bucket, None)

    def note_turn(self, bucket: Bucket, at: float) -> None:
        """Remember the turn of a returned task, by the monotonic clock: tasks that are parked now have later turns."""
        limit = self._limits.get(bucket[0])
        if limit is not None and not isinstance(limit, Concurrency):
            _remember(self._turns, bucket, max(at, self._turns.get(bucket, 0.0)))

    def note_coming(self, message: Any, seconds: float) -> None:
        """Remember the turn of a message that has just left the backlog, and is due in that many seconds."""
        marker = marker_in(message)
        if "lot" in marker and not marker.get("again"):  # else it was sent back for another reason
            name, key = marker["lot"]
            self.note_turn((name, key), time.monotonic() + min(seconds, tuning.RETURN_AHEAD))

    def is_closed(self, bucket: Bucket) -> bool:
        """Whether a new request has no turn soon: returned tasks have earlier turns, even if no task is parked."""
        return self._turns.get(bucket, 0.0) - time.monotonic() > tuning.CLOSED_AHEAD

    def forget_turns(self, names: Container[str]) -> None:
        """Forget the turns of these limits, which have changed."""
        for bucket in [bucket for bucket in self._turns if bucket[0] in names]:
            del self._turns[bucket]

    def forget(self, bucket: Bucket) -> None:
        self._occupied.pop(bucket, None)

    def clear(self) -> None:
        self._occupied.clear()

    def lot_of(self, demands: Sequence[LimitRequest]) -> LimitRequest | None:
        """The first demand with parked tasks, or without a turn soon, in its bucket: a new request is parked there."""
        for demand in demands if self._occupied or self._turns else ():
            bucket = demand.name, demand.key
            if bucket in self._occupied or self.is_closed(bucket):
                return demand
        return None

    def looks_in(self, bucket: Bucket) -> float:
        """Seconds until a poll after a task is parked in an empty bucket."""
        turn = self._turns.get(bucket, 0.0) - time.monotonic()
        return min(
            tuning.POLL_INTERVAL,
            max(tuning.FIRST_POLL_DELAY, tuning.FIRST_POLL_SHARE * (turn - tuning.RETURN_DURATION)),
        )


def _remember(known: OrderedDict[Bucket, Any], bucket: Bucket, value: Any) -> None:
    known[bucket] = value
    known.move_to_end(bucket)
    if len(known) > tuning.MAX_KNOWN_BUCKETS:
        known.popitem(last=False)
