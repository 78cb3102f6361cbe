"""What becomes of requests while the store does not answer: ``ratelimit_on_store_error``."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..limiter.demand import Demand
from ..limiter.leases import Leases
from ..limiter.outage import Outage
from ..limits import Concurrency
from .capacity import PoolCapacity
from .clock import monotonic
from .request import PendingRequest
from .rules import RETURN_HOLD, Action, BlockQueue, without_store

__all__ = ["POLL_INTERVAL", "FallbackLimiter"]

#: Seconds after which requests that wait for a process, or for a move of the store, are looked at again.
POLL_INTERVAL = 0.1
#: Seconds after which a request asks again for which there is no lease.
AGAIN = 0.5


class FallbackLimiter:
    """With ``"local"`` it gives out this worker's share of each limit: the limit divided by the workers of the fleet.

    It starts empty, not full: what the fleet took just before the outage is not known.

    Args:
        choice: ``ratelimit_on_store_error``.
        workers: how many there are, as far as is known.
        leases: what runs here.
        outage: of the store.
        capacity: of the pool.
    """

    def __init__(
        self, choice: str, workers: Callable[[], int], leases: Leases, outage: Outage, capacity: PoolCapacity
    ) -> None:
        self._choice, self._workers, self._leases = choice, workers, leases
        self._outage, self._capacity = outage, capacity
        self._tats: dict[tuple[str, str], float] = {}

    def clear(self) -> None:
        """The outage is over."""
        self._tats.clear()

    def action(self, pending: PendingRequest, now: float) -> Action:
        """What becomes of a request for which the store has not answered."""
        if self._outage.is_a_move:
            return BlockQueue(now + POLL_INTERVAL)
        self._outage.begin(self._outage.error)  # which is said again after a while
        choice = "defer" if pending.park_unconfirmed else self._choice  # it may be parked
        may_start = choice in ("local", "allow") and self._capacity.has_for_permit(now)
        wait = self._wait(pending.demands) if choice == "local" and may_start else 0.0
        if choice == "local" and may_start and wait <= 0:
            self._leases.begin(pending.run_id, pending.demands, 0)
        deferred = choice == "defer" or wait > RETURN_HOLD
        pause = self._outage.pause() if deferred else 0.0
        return without_store(choice, pending, now, self._outage.error, may_start=may_start, wait=wait, pause=pause)

    def _wait(self, demands: Sequence[Demand]) -> float:
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
