"""What a request has while it is held, and gives back: a process that is kept for it, places, a slot in the store."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from .capacity import PoolCapacity
from .concurrency import ConcurrencyLeases
from .flow_control import PrefetchAccounting
from .request import AcquireCall, PendingRequest, State
from .request_queue import LimitQueue
from .reservations import Reservations

__all__ = ["RequestResources"]

logger = logging.getLogger("celery_ratelimit")


class RequestResources:
    """Moves requests so that nothing of them stays behind.

    Args:
        slots: in the store.
        capacity: keeps processes.
        prefetch: counts the requests here.
        leases: of running tasks.
    """

    def __init__(
        self, slots: Reservations, capacity: PoolCapacity, prefetch: PrefetchAccounting, leases: ConcurrencyLeases
    ) -> None:
        self._slots, self._capacity, self._prefetch, self._leases = slots, capacity, prefetch, leases

    def hold(self, limit_queue: LimitQueue, pending: PendingRequest, at: float, permit_at_us: int) -> None:
        """It has a permit that is good at that time: a process is kept for it."""
        limit_queue.hold(pending, at, permit_at_us)
        self._capacity.promises.add(at, pending.request.task.name)

    def start_acquiring(self, limit_queue: LimitQueue, call: AcquireCall) -> None:
        """Its requests are asked for: processes are kept for the permits."""
        limit_queue.acquire = call
        call.begin()
        if call.for_permit:
            self._capacity.promises.acquire(call, call.requests[0].request.task.name)

    def end_acquiring(self, limit_queue: LimitQueue, call: AcquireCall) -> None:
        """Undo :meth:`start_acquiring`."""
        self._capacity.promises.end_acquiring(call)
        if limit_queue.acquire is call:
            limit_queue.acquire = None
            call.end()

    def recall(
        self, limit_queue: LimitQueue, pending: PendingRequest, *, behind: Sequence[PendingRequest] = ()
    ) -> None:
        """What it was told is void: it asks. A permit that was not used is lost; a place is free for others."""
        had_permit = pending.state is State.GRANTED
        self._free_process(pending)
        limit_queue.recall(pending, behind=behind)
        if had_permit:
            self.release_lease(pending)
            pending.new_run()

    def leave(self, limit_queue: LimitQueue, pending: PendingRequest, *, starts: bool = False) -> None:
        """It is not in the gate any more. What ``starts`` keeps its places."""
        try:
            if not pending.gone:
                self._free_process(pending)
                limit_queue.leave(pending)
                self._prefetch.leave(pending)
        finally:
            if not starts:
                self.release_lease(pending)

    def evict(self, limit_queue: LimitQueue, pending: PendingRequest) -> None:
        """Something unforeseen was raised at it: it leaves, whatever it was doing, and what it has is given back."""
        try:
            self.leave(limit_queue, pending, starts=pending.request in self._leases)
            self.forget_slot(pending)
        except Exception as error:  # of the same cause, perhaps
            logger.error("Task %s[%s] goes, but %r", pending.request.name, pending.request.id, error, exc_info=error)

    def _free_process(self, pending: PendingRequest) -> None:
        """If it holds a permit: no process is kept for it any more."""
        if pending.state is State.GRANTED:
            self._capacity.promises.take_back(pending.at)

    def release_lease(self, pending: PendingRequest) -> None:
        """Its places are free, if it has any."""
        if pending.plan.leased:
            self._leases.release(pending)

    def forget_slot(self, pending: PendingRequest) -> None:
        """Its slot is others'."""
        self._slots.forget(pending)
