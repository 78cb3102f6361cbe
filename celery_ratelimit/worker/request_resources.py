"""What a request holds while it is in the gate: a process, leases, a reservation, and a part of the prefetch."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..app.plan import Plan
from ..limiter.sync_store import StoreRunner
from ..store_calls.outage import Outage
from .capacity import PoolCapacity
from .concurrency import ConcurrencyLeases
from .flow_control import HeldRequests
from .request import AcquireCall, PendingRequest, State
from .request_queue import LimitQueue

__all__ = ["RequestResources"]

logger: logging.Logger = logging.getLogger("celery_ratelimit")


class RequestResources:
    """Moves requests between states, and gives back what a request no longer needs.

    Args:
        outage: while it lasts no reservation is given back: it lapses by itself.
    """

    def __init__(
        self,
        asker: StoreRunner,
        outage: Outage,
        capacity: PoolCapacity,
        prefetch: HeldRequests,
        concurrency: ConcurrencyLeases,
    ) -> None:
        self._asker, self._outage = asker, outage
        self._processes, self._prefetch, self._concurrency = capacity.reservations, prefetch, concurrency

    def grant(self, limit_queue: LimitQueue, pending: PendingRequest, at: float, permit_at_us: int) -> None:
        """Reserve a process for a permit that is good at that time."""
        limit_queue.grant(pending, at, permit_at_us)
        self._processes.add(at, pending.request.task.name)

    def start_acquiring(self, limit_queue: LimitQueue, call: AcquireCall) -> None:
        """Reserve processes for the permits that a call asks for.

        Not for leases: the call asks for as many as processes are free, and its reply is there before the loop goes on.
        """
        limit_queue.acquire = call
        call.begin()
        if call.for_permit and not call.requests[0].plan.leased:
            self._processes.acquire(call, call.requests[0].request.task.name)

    def end_acquiring(self, limit_queue: LimitQueue, call: AcquireCall) -> None:
        """Undo :meth:`start_acquiring`."""
        self._processes.end_acquiring(call)
        if limit_queue.acquire is call:
            limit_queue.acquire = None
            call.end()

    def requeue(
        self, limit_queue: LimitQueue, pending: PendingRequest, *, behind: Sequence[PendingRequest] = ()
    ) -> None:
        """The request asks again: its time is void, its permit is lost, and its lease is free for others."""
        had_permit = pending.state is State.GRANTED
        self._free_process(pending)
        limit_queue.requeue(pending, behind=behind)
        if had_permit:
            self.release_lease(pending)
            pending.new_run()

    def start(self, limit_queue: LimitQueue, pending: PendingRequest) -> bool:
        """Let a request leave for the pool. False: it was revoked, or its connection is lost, and it does not start."""
        starts = not (pending.request.revoked() or pending.gone)
        self.leave(limit_queue, pending, starts=starts)
        if starts and pending.plan.leased:
            self._concurrency.begin(pending)
        return starts

    def leave(self, limit_queue: LimitQueue, pending: PendingRequest, *, starts: bool = False) -> None:
        """Let a request leave the gate. A task that ``starts`` keeps its leases."""
        try:
            if not pending.gone:
                self._free_process(pending)
                limit_queue.leave(pending)
                self._prefetch.leave(pending)
        finally:
            if not starts:
                self.release_lease(pending)

    def evict(self, limit_queue: LimitQueue, pending: PendingRequest) -> None:
        """Let a request leave at which an unforeseen error was raised, whatever it was doing."""
        try:
            self.leave(limit_queue, pending, starts=pending.request in self._concurrency)
            self.give_up_slot(pending)
        except Exception as error:  # of the same cause, perhaps
            logger.error("Task %s[%s] goes, but %r", pending.request.name, pending.request.id, error, exc_info=error)

    def _free_process(self, pending: PendingRequest) -> None:
        if pending.state is State.GRANTED:
            self._processes.remove(pending.at)

    def release_lease(self, pending: PendingRequest) -> None:
        """Give its leases, if it has any, to the next request that asks, or free them at :meth:`release_ended`."""
        if pending.plan.leased:
            self._concurrency.release(pending)

    # -- Reservations in the store ---------------------------------------------------------------------------------

    def give_up_slot(self, pending: PendingRequest) -> None:
        """Give back its reservation: its task will not use it."""
        self._outage.ask(lambda: self._asker.forget(pending.demands, id=pending.id), None, quietly=True)

    def give_up_slot_of(self, plan_of: Callable[[], Plan | None], context: Any, marker: Mapping[str, Any]) -> None:
        """Give back the reservation of a task that never came to the gate. An error of the user's key is ignored."""
        try:
            plan = plan_of()
            if plan is None:
                return
            attempt = f"{context.id}.{context.retries}" if context.retries else context.id
            id = marker.get("id") or f"{attempt}@{marker.get('queue')}"
            demands = plan.demands(context.args, context.kwargs)
            self._outage.ask(lambda: self._asker.forget(demands, id=id), None, quietly=True)
        except Exception as error:
            logger.debug("no reservation to give back for %s: %r", context.id, error)
