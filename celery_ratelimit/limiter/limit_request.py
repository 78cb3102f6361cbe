"""A call's request to one limit."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any

from ..errors import ConfigurationError
from ..limits.any_limit import AnyLimit
from ..limits.concurrency import Concurrency
from ..limits.key_rates import whole_limit
from ..limits.priority_reserve import MILLION
from ..limits.rate_limit import Limit
from ..store.keys import short
from ..store.resp import bulk

__all__ = ["LimitRequest", "Limits", "costs_for", "each_bucket_once", "leased", "of_cost", "own_key", "with_priority"]


@dataclass(frozen=True)
class LimitRequest:
    """A call's request to one limit: the limit under its final name, the bucket's key, and the cost.

    ``share``: the caller's key under a fair limit. It does not affect the decision, so requests are equal without it.
    ``leaves``: under a limit with a reserve, the millionths of its burst that the call leaves to calls of higher
    priority; ``None``: the call has no priority, and leaves the whole reserve.
    """

    limit: AnyLimit
    name: str
    key: str = ""
    cost: int = 1
    leaves: int | None = None
    share: str | None = field(default=None, compare=False)

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.limit, self.name, self.key, self.cost, self.leaves))

    def __getstate__(self) -> dict[str, Any]:
        # Hashes of strings differ between processes.
        return {each: self.__dict__[each] for each in ("limit", "name", "key", "cost", "leaves", "share")}

    @cached_property
    def interval(self) -> float:
        """The emission interval, in seconds; 0: the limit has none."""
        return self.limit.interval

    @cached_property
    def pace(self) -> float:
        """The emission interval if permits come back one by one; else 0."""
        return self.interval if self.method in ("token_bucket", "leaky_bucket") else 0.0

    @cached_property
    def method(self) -> str:
        """The algorithm's name in ``lua/algorithms/``."""
        return self.limit.method

    @cached_property
    def size(self) -> int:
        """The most permits that the limit holds."""
        return self.limit.size

    @cached_property
    def wire(self) -> bytes:
        """The arguments that ``lua/include/read_limits.lua`` reads, in wire form."""
        return bulk(*self.limit.wire(self.cost, self.leaves))

    @cached_property
    def _leaves(self) -> int:
        if self.limit.priority_reserve is None:
            return 0
        most: int = self.limit.priority_reserve.most
        return most if self.leaves is None else self.leaves

    @cached_property
    def passes(self) -> bool:
        """Whether the call may use the reserve, and so goes before waiting calls that may not."""
        return self.limit.priority_reserve is not None and self._leaves < self.limit.priority_reserve.most

    @cached_property
    def leaves_in_record(self) -> int | None:
        """The field ``leaves`` of a parked task's record: ``lua/take_due.lua`` reserves its slot with it."""
        if self.leaves is None:
            return None
        return -int(self.limit.wire(self.cost, self.leaves)[5])

    def lease_of(self, id: str) -> str:
        """The lease of ``id`` as the store keeps it, see ``lua/include/lease_sizes.lua``."""
        return f"{id}\0{self.cost}" if self.cost > 1 else id

    def left(self, size: int) -> int:
        """Permits that the call leaves of a burst of ``size``, as ``lua/algorithms/token_bucket.lua`` computes them."""
        return max(0, min(self._leaves * size // MILLION, size - self.cost))


def with_priority(demands: tuple[LimitRequest, ...], priority: int, *, lowest_first: bool) -> tuple[LimitRequest, ...]:
    """The limit requests of a call of that priority; ``lowest_first``: the broker's order."""
    return _with_priority(demands, tuple([demand.share for demand in demands]), priority, lowest_first)


@lru_cache(maxsize=4096)
def _with_priority(
    demands: tuple[LimitRequest, ...], shares: tuple[str | None, ...], priority: int, lowest_first: bool
) -> tuple[LimitRequest, ...]:
    """``shares`` is part of the cache key: limit requests are equal whatever their shares."""
    return tuple(
        [
            demand
            if demand.limit.priority_reserve is None
            else replace(demand, leaves=demand.limit.priority_reserve.left_by(priority, lowest_first=lowest_first))
            for demand in demands
        ]
    )


def each_bucket_once(demands: Sequence[LimitRequest]) -> tuple[LimitRequest, ...]:
    """One limit request for each bucket, the one of the highest cost: a bucket that is named twice is charged once.

    Raises:
        ConfigurationError: two different limits have one name.
    """
    if len(demands) == 1:
        return (demands[0],)
    buckets: dict[tuple[str, str], LimitRequest] = {}
    limits: dict[str, AnyLimit] = {}
    for demand in demands:
        other = limits.setdefault(demand.name, demand.limit)
        if other is not demand.limit and _as_bucket(other) != _as_bucket(demand.limit):
            raise ConfigurationError(
                f"two limits of one request are named {demand.name!r} and differ: {other!r} and {demand.limit!r}; "
                "give one of them another name"
            )
        known = buckets.setdefault((demand.name, demand.key), demand)
        if demand.cost > known.cost:
            buckets[demand.name, demand.key] = demand
    return tuple(buckets.values())


def _as_bucket(limit: AnyLimit) -> AnyLimit:
    """The limit without its name and the options that may differ between calls."""
    limit = whole_limit(limit)  # its rate may be that of a key
    rates = {"rates": None} if isinstance(limit, Limit) else {}
    return replace(limit, name=None, key=None, missing_key=None, cost=1, fair=None, weights={}, **rates)


#: The argument ``limits`` of the public methods.
Limits = str | AnyLimit | Sequence[str | AnyLimit]


def leased(demands: Sequence[LimitRequest]) -> list[LimitRequest]:
    """The requests to :class:`Concurrency` limits, which hold leases."""
    return [demand for demand in demands if isinstance(demand.limit, Concurrency)]


def own_key(limit: AnyLimit, key: str, node: str | None = None) -> str:
    """The bucket's key: with ``per_worker`` each node has a bucket of its own; default: each machine."""
    return f"{short(key)}@{node or socket.gethostname()}" if limit.per_worker else short(key)


def costs_for(limits: Sequence[AnyLimit], cost: int | None, of_each: bool) -> list[int | None]:
    """The cost that a call names for each limit; ``None``: the limit's own, as of a Concurrency beside rates."""
    if of_each or all(isinstance(limit, Concurrency) for limit in limits):
        return [cost] * len(limits)
    return [None if isinstance(limit, Concurrency) else cost for limit in limits]


def of_cost(demands: tuple[LimitRequest, ...], cost: int) -> tuple[LimitRequest, ...]:
    """The requests, each of this cost."""
    return tuple([replace(demand, cost=cost) for demand in demands])
