"""How far away the store is: while one worker waits for an answer, much happens of which it hears later."""

from __future__ import annotations

from collections import deque

__all__ = ["FAR", "REACH", "StoreLatency"]

#: Seconds of a round trip from which on the store is far away.
FAR = 0.005
#: Round trips in whose time returning tasks ask together, where the store is far away.
REACH = 3
#: Seconds that are believed of a single round trip, and what it counts for in the mean.
MOST, NEWEST = 0.1, 1 / 8
#: Seconds of the shortest of the last replies from which on threads make calls, and below which the loop makes them
#: again. To hand a call over and back takes 0.1 ms.
THREADS_FROM, LOOP_BELOW = 0.001, 0.0005
#: Answers of which the shortest says how far away it is: others took long since there was much to do, here or there.
LATELY = 16


class StoreLatency:
    """Of one worker's store.

    Attributes:
        round_trip: seconds that an answer takes, a mean.
        is_worth_threads: the store is so far away that a thread is to wait for it.
    """

    def __init__(self) -> None:
        self.round_trip, self.is_worth_threads = 0.0, False
        self._lately: deque[float] = deque(maxlen=LATELY)

    def note(self, seconds: float) -> None:
        """An answer has taken so long."""
        self.round_trip += NEWEST * (min(MOST, seconds) - self.round_trip)
        self._lately.append(seconds)
        self.is_worth_threads = min(self._lately) >= (LOOP_BELOW if self.is_worth_threads else THREADS_FROM)

    @property
    def is_far(self) -> bool:
        return self.round_trip >= FAR

    @property
    def reach(self) -> float:
        """Seconds by which more is asked ahead, since the store is far away."""
        return REACH * self.round_trip if self.is_far else 0.0
