"""Who is expected to come back to a worker, and when its turn is. Times are those of ``time.monotonic``."""

from __future__ import annotations

import heapq

from .verdict import Park

__all__ = ["KEEP", "Expected"]

#: Seconds before a turn from which on a process is kept for it, at the longest.
KEEP = 1.0
#: Seconds after its time from which on a request that should be back is not waited for.
LATE = 0.1


class Expected:
    """Tasks that wait here for the end of their countdown, or may soon come back here."""

    def __init__(self) -> None:
        self._coming: dict[str, float] = {}
        self._next: list[tuple[float, str]] = []

    def expect(self, id: str, at: float, now: float) -> None:
        """A task has its turn at that time."""
        self._coming[id] = at
        heapq.heappush(self._next, (at, id))
        self.next_comer(now)  # who has come is forgotten, also where nobody asks who comes next

    def expect_some(self, lot: str, now: float) -> None:
        """Whoever waits in a lot may come here at any time; for a while, until they say when."""
        if self._coming.get(lot, 0.0) < now + KEEP / 2:  # seldom: a lot fills with thousands
            self.expect(lot, now + KEEP, now)

    def expect_parked(self, id: str, verdict: Park, interval: float, now: float) -> None:
        """A task is parked, or is about to be: whoever leaves its lot next is to find a process, if it comes to this
        worker. Until it is here, and says when, long tasks could have them all. ``interval``: seconds in which a permit
        comes back.
        """
        if not verdict.only_behind and verdict.wait <= KEEP:
            self.expect(id, now + verdict.wait, now)
        elif verdict.only_behind and interval <= KEEP:
            self.expect_some(f"{verdict.demand.name}:{verdict.demand.key}", now)

    def has_come(self, id: str) -> float:
        """It is here. Returns when it has its turn; 0.0: it was not expected."""
        return self._coming.pop(id, 0.0)

    def has_turn(self, id: str, until: float) -> bool:
        """Whether it is expected, and has its turn by then."""
        return 0.0 < self._coming.get(id, 0.0) <= until

    def next_comer(self, now: float) -> float:
        """When the next one has its turn that is expected; infinity: nobody is."""
        while self._next:
            at, id = self._next[0]
            if self._coming.get(id) == at:
                if at > now - LATE:
                    return at
                del self._coming[id]  # it was revoked, or the timer is late: it claims a process when it comes
            heapq.heappop(self._next)
        return float("inf")

    def clear(self) -> None:
        """Nobody comes: the connection is lost, or the worker stops."""
        self._coming.clear()
        self._next.clear()
