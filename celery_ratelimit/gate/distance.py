"""How far away the store is: while one worker waits for an answer, much happens of which it hears later."""

from __future__ import annotations

__all__ = ["FAR", "REACH", "Distance"]

#: Seconds of a round trip from which on the store is far away.
FAR = 0.005
#: Round trips in whose time those ask together that come back to a worker whose store is far away.
REACH = 3
#: Seconds that are believed of a single round trip, and what it counts for in the mean.
MOST, NEWEST = 0.1, 1 / 8


class Distance:
    """Of one worker's store.

    Attributes:
        round_trip: seconds that an answer takes, a mean.
    """

    def __init__(self) -> None:
        self.round_trip = 0.0

    def note(self, seconds: float) -> None:
        """An answer has taken so long."""
        self.round_trip += NEWEST * (min(MOST, seconds) - self.round_trip)

    @property
    def is_far(self) -> bool:
        return self.round_trip >= FAR

    @property
    def reach(self) -> float:
        """Seconds by which more is asked ahead, since the store is far away."""
        return REACH * self.round_trip if self.is_far else 0.0
