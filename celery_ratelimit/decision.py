"""What the limiter answers: a frozen value, whether it said yes or no."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Decision", "LimitState"]


@dataclass(frozen=True, slots=True)
class LimitState:
    """One limit as it stood right after the decision.

    Attributes:
        name: the limit's name.
        key: which bucket of that limit, ``""`` if it has one only.
        limit: the most permits the bucket holds (its burst).
        remaining: whole permits that were left at that moment.
        reset_after: seconds until the bucket is full again, if nobody takes anything.
    """

    name: str
    key: str
    limit: int
    remaining: int
    reset_after: float


@dataclass(frozen=True, slots=True)
class Decision:
    """The answer to one ``acquire`` or ``peek``, over all the limits that it named.

    Attributes:
        allowed: every limit gave its permits; nothing was taken from any of them otherwise.
        limit: the capacity of the limit that is nearest to saying no (for a refusal: of the one that did).
        remaining: permits left there.
        retry_after: seconds to wait. Refused: until the same request can be granted, rounded up, so that whoever
            waits that long is not turned away for rounding. Allowed: until the permit is good, 0.0 unless the
            caller asked for a permit that lies ahead.
        reset_after: seconds until that limit is full again.
        binding: the name of the limit that said no; ``None`` when allowed.
        states: the same for each limit, in the order of the request.
    """

    allowed: bool
    limit: int
    remaining: int
    retry_after: float
    reset_after: float
    binding: str | None
    states: tuple[LimitState, ...] = ()
