"""The limiter's decision, a frozen value, whether it allows the request or not."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

__all__ = ["Decision", "LimitState"]


class LimitState(NamedTuple):
    """The state of one limit right after the decision.

    Attributes:
        name: the limit's name.
        key: the bucket's key; ``""``: the limit has a single bucket.
        capacity: permits of the full bucket (its burst, or its window's count).
        remaining: whole permits left at that moment.
        reset_after: seconds until the bucket is full again, if no permit is taken.
        interval: seconds in which one permit comes back; 0.0: permits do not come back one by one.
        version: of the stored limit in force; 0: no version, or the code's limit; negative: the limit is in shadow, and
            the store has granted the request.
    """

    name: str
    key: str
    capacity: int
    remaining: int
    reset_after: float
    interval: float = 0.0
    version: int = 0


class GrantedAt(int):
    """When the permits of limits on several nodes are good, each by its node's clock: the latest of all, and each by
    the name of its limit."""

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
    """The result of one ``acquire`` or ``peek``, over all limits of the request. It is true if it allows the request:
    ``if limiter.acquire("stripe"): …``.

    Attributes:
        allowed: whether every limit gave its permits; if not, none was taken.
        capacity: permits of the full bucket with the least room (for a refusal: of the limit that refused).
        remaining: permits left in that bucket.
        retry_after: seconds to wait. Refused: until the same request can be granted, rounded up, so that a caller that
            waits that long is not refused for rounding. Allowed: until the permit is good; 0.0 unless the caller
            acquired it ahead of time.
        reset_after: seconds until that bucket is full again.
        limited_by: the name of the limit that refused; ``None`` if allowed.
        states: the state of each limit, in the order of the request.
        queue_full: refused, because the queue is full, too (the option ``capacity`` of a leaky bucket).
            ``retry_after`` then is the time until the queue has room.
        id: names the request, for :meth:`~celery_ratelimit.Limiter.settle` and leases.
        permits: how many permits :meth:`~celery_ratelimit.Limiter.acquire_up_to` took of each limit; 0 for other calls,
            which take each limit's cost.

    ``states`` omits limits in shadow, which delay nothing, unless all limits of the request are in shadow.

    The package's own modules use three private fields. ``_granted_at``: when the permits are good, in microseconds
    since 1970 by the store's clock; 0: a test has switched the store off. ``_demands``: the limit requests, empty if
    the store was not called, so that there is nothing to settle or to release. ``_shadow``: the requests to limits in
    shadow.
    """

    allowed: bool
    capacity: int
    remaining: int
    retry_after: float
    reset_after: float
    limited_by: str | None
    states: tuple[LimitState, ...] = ()
    queue_full: bool = False
    id: str = field(default="", compare=False)
    _granted_at: int = 0
    _demands: tuple[Any, ...] = field(default=(), repr=False, compare=False)
    _shadow: tuple[Any, ...] = field(default=(), repr=False, compare=False)
    permits: int = 0

    def __bool__(self) -> bool:
        return self.allowed
