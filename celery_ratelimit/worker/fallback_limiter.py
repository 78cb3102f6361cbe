"""``ratelimit_on_store_error="local"``: while the store does not answer, each worker has its share of every limit."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..limiter.demand import Demand
from ..limiter.leases import Leases
from ..limits import Concurrency
from .clock import monotonic

__all__ = ["FallbackLimiter"]

#: Seconds after which one asks again for whom there is no place.
AGAIN = 0.5


class FallbackLimiter:
    """This worker's share of each limit: the limit divided by the workers of the fleet.

    It starts empty, not full: what the fleet took just before the outage is not known.

    Args:
        workers: how many there are, as far as is known.
        leases: what runs here.
    """

    def __init__(self, workers: Callable[[], int], leases: Leases) -> None:
        self._workers, self._leases = workers, leases
        self._tats: dict[tuple[str, str], float] = {}

    def clear(self) -> None:
        """The outage is over."""
        self._tats.clear()

    def wait(self, demands: Sequence[Demand]) -> float:
        """Take permits of each limit; else the seconds until there are some."""
        now, workers = monotonic(), self._workers()
        places = [demand for demand in demands if isinstance(demand.limit, Concurrency)]
        if any(self._leases.here(demand) >= max(1, demand.size // workers) for demand in places):
            return AGAIN
        intervals = {
            (demand.name, demand.key): demand.interval * demand.cost * (1 if demand.limit.per_worker else workers)
            for demand in demands
        }
        for bucket, interval in intervals.items():
            self._tats.setdefault(bucket, now + interval)
        wait = max(self._tats[bucket] for bucket in intervals) - now
        if wait <= 0:
            self._tats.update((bucket, now + interval) for bucket, interval in intervals.items())
        return wait
