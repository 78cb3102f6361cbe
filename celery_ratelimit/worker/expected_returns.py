"""Who is expected to come back to a worker, and when its turn is. Times are those of ``time.monotonic``."""

from __future__ import annotations

import heapq

from .rules import Park

__all__ = ["KEEP", "ExpectedReturns"]

#: Seconds before a turn from which on a process is kept for it, at the longest.
KEEP = 1.0
#: Seconds after its time from which on a request that should be back is not waited for.
LATE = 0.1


class ExpectedReturns:
    """Tasks that wait here for the end of their countdown, or may soon come back here."""

    def __init__(self) -> None:
        self._arrivals_batch: dict[str, float] = {}
        self._next: list[tuple[float, str]] = []

    def expect(self, id: str, at: float, now: float) -> None:
        """A task has its turn at that time."""
        self._arrivals_batch[id] = at
        heapq.heappush(self._next, (at, id))
        self.next_due(now)  # who has come is forgotten, also where nobody asks who comes next

    def expect_some(self, lot: str, now: float) -> None:
        """Whoever waits in a lot may come here at any time; for a while, until they say when."""
        if self._arrivals_batch.get(lot, 0.0) < now + KEEP / 2:  # seldom: a lot fills with thousands
            self.expect(lot, now + KEEP, now)

    def expect_parked(self, id: str, action: Park, interval: float, now: float) -> None:
        """A task is parked, or is about to be: whoever leaves its lot next is to find a process, if it comes to this
        worker. Until it is here, and says when, long tasks could have them all. ``interval``: seconds in which a permit
        comes back.
        """
        if not action.only_behind and action.wait <= KEEP:
            self.expect(id, now + action.wait, now)
        elif action.only_behind and interval <= KEEP:
            self.expect_some(f"{action.demand.name}:{action.demand.key}", now)

    def pop_due(self, id: str) -> float:
        """It is here. Returns when it has its turn; 0.0: it was not expected."""
        return self._arrivals_batch.pop(id, 0.0)

    def has_turn(self, id: str, until: float) -> bool:
        """Whether it is expected, and has its turn by then."""
        return 0.0 < self._arrivals_batch.get(id, 0.0) <= until

    def next_due(self, now: float) -> float:
        """When the next one has its turn that is expected; infinity: nobody is."""
        while self._next:
            at, id = self._next[0]
            if self._arrivals_batch.get(id) == at:
                if at > now - LATE:
                    return at
                del self._arrivals_batch[id]  # it was revoked, or the timer is late: it claims a process when it comes
            heapq.heappop(self._next)
        return float("inf")

    def clear(self) -> None:
        """Nobody comes: the connection is lost, or the worker stops."""
        self._arrivals_batch.clear()
        self._next.clear()
