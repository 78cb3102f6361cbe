"""What it means for the worker that requests are in its gate: its prefetch, and the queues that it consumes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .._celery import MOST_RETURNED, Worker
from .capacity import AHEAD, PoolCapacity
from .request import PendingRequest, State
from .request_queue import LimitQueue
from .suspended_queues import QueuedRequest, SuspendedQueues

__all__ = ["PrefetchAccounting"]


class PrefetchAccounting:
    """Counts who is in the gate.

    Args:
        worker: the worker.
        capacity: of its pool.

    Attributes:
        limited: requests with limits that are held.
    """

    def __init__(self, worker: Worker, capacity: PoolCapacity) -> None:
        self._worker, self._capacity = worker, capacity
        self._suspended = SuspendedQueues(worker, self.widen)
        self._outside = 0
        self.limited = 0

    def enter(self, waiting: QueuedRequest) -> None:
        self._capacity.pending += 1
        self.limited += isinstance(waiting, PendingRequest)

    def widen(self, waiting: QueuedRequest) -> None:
        """What waits here for its turn is not to keep others out, unless there are very many."""
        if self._outside < MOST_RETURNED and not waiting.outside_prefetch:
            self._outside += 1
            waiting.outside_prefetch = True
            self._worker.intake.widen()

    def suspend(self, pending: PendingRequest, limit_queue: LimitQueue, now: float) -> None:
        """Its queue is not consumed for now, if those who came from it will be here for long."""
        first = max(0.0, limit_queue.closed_until - now)
        # Or what the broker hands out of all queues would soon be of this one; or nothing, for too long.
        each = limit_queue.interval or max(demand.interval * demand.cost for demand in pending.demands)
        waits = not limit_queue.permit_available or first + (len(limit_queue) - 1) * each > AHEAD
        among_others = self._worker.intake.has_several_queues and waits
        if among_others or 0 < first + len(limit_queue) * limit_queue.interval < self._worker.broker.hears_after:
            self.widen(pending)
        self._suspended.suspend(
            pending, [*limit_queue.with_slot, *limit_queue.new], first, lambda: limit_queue.interval
        )

    def suspend_if_it_stays(self, pending: PendingRequest, limit_queue: LimitQueue, now: float) -> None:
        """The same for one that has just come."""
        waits_in_worker = pending.plan.policy.throttle == "wait" and pending.state is State.QUEUED
        if waits_in_worker and (not pending.returned or self._worker.intake.is_full):
            self.suspend(pending, limit_queue, now)

    def suspend_unlimited(
        self, waiting: QueuedRequest, among: Sequence[QueuedRequest], each: Callable[[], float]
    ) -> None:
        """The same for a request that nothing limits; ``each``: seconds from one of them to the next."""
        if len(among) * each() < self._worker.broker.hears_after:
            self.widen(waiting)
        if self.limited and self._worker.intake.has_several_queues:
            self._suspended.suspend(waiting, among, 0.0, each)

    def leave(self, waiting: QueuedRequest) -> None:
        """It is not in the gate any more."""
        self._capacity.pending -= 1
        self.limited -= isinstance(waiting, PendingRequest)
        if waiting.outside_prefetch:
            self._outside -= 1
            self._worker.intake.narrow()
        self._suspended.on_left(waiting)

    def clear(self) -> None:
        """The connection is lost, or the worker stops: nobody is held."""
        self.limited = self._outside = 0
        self._capacity.clear()
        self._suspended.clear()
