"""What the limiter answers: a frozen value, whether it said yes or no."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

__all__ = ["Decision", "LimitState"]


class LimitState(NamedTuple):
    """One limit as it stood right after the decision.

    Attributes:
        name: the limit's name.
        key: which bucket of that limit, ``""`` if it has one only.
        limit: the most permits the bucket holds (its burst).
        remaining: whole permits that were left at that moment.
        reset_after: seconds until the bucket is full again, if nobody takes anything.
        interval: seconds in which one permit comes back; 0.0 where they do not come back one by one.
        version: of the stored limit that is in force; 0: it has none, or it is the code's limit; below 0: it
            is in shadow, and the store has let everybody through.
    """

    name: str
    key: str
    limit: int
    remaining: int
    reset_after: float
    interval: float = 0.0
    version: int = 0


class GrantedAt(int):
    """When the permits of limits on several nodes are good, which have a clock each: the latest of all, and each by the
    name of its limit."""

    by_name: dict[str, int]

    def __new__(cls, by_name: dict[str, int]) -> GrantedAt:
        self = super().__new__(cls, max(by_name.values()))
        self.by_name = by_name
        return self

    def __reduce__(self) -> tuple[type[GrantedAt], tuple[dict[str, int]]]:
        return GrantedAt, (self.by_name,)

    def of(self, name: str) -> int:
        return self.by_name.get(name, int(self))


@dataclass(frozen=True, slots=True)
class Decision:
    """The answer to one ``acquire`` or ``peek``, over all the limits that it named. It is true if it allows:
    ``if limiter.acquire("stripe"): …``.

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
        full: refused, and there is no room to wait either: a leaky bucket's ``capacity``. ``retry_after`` then is when
            there will be room.
        id: names the request, for :meth:`~celery_ratelimit.Limiter.settle` and leases.
        granted_at: when the permits are good, in microseconds since 1970 by the store's clock. 0 where a test has
            switched the store off (:mod:`celery_ratelimit.testing`).
        demands: what was asked of which limit (``limiter/limit_request.py``). Empty where the store was not asked:
            there is nothing to settle or to give back.
        shadow: what was asked of limits in shadow, which are not in ``states`` unless all are, and held nothing up.
    """

    allowed: bool
    limit: int
    remaining: int
    retry_after: float
    reset_after: float
    binding: str | None
    states: tuple[LimitState, ...] = ()
    full: bool = False
    id: str = field(default="", compare=False)
    granted_at: int = 0
    demands: tuple[Any, ...] = field(default=(), repr=False, compare=False)
    shadow: tuple[Any, ...] = field(default=(), repr=False, compare=False)

    def __bool__(self) -> bool:
        return self.allowed
