"""Carries out what was decided about a request: it leaves the gate here alone, published first, then acknowledged."""

from __future__ import annotations

import logging
from dataclasses import replace
from time import monotonic

from .._celery import Worker, requests
from ..backlog.backlog import ParkResult
from ..backlog.tuning import RETURN_EARLY
from ..errors import STORE_TROUBLES
from ..store_calls.outage import Outage
from ..store_calls.store_clock import StoreClock
from .admission import POLL_INTERVAL
from .announce_outcomes import Reporter, ThrottleReport, outcome_of
from .deduplication import Deduplication
from .flow_control import HeldRequests
from .next_action import Action, BlockQueue, DropDuplicate, Fail, GiveUp, Park, Republish, RetryAt, Start, StartAt
from .parking_batch import ParkingBatch, PendingPark
from .request import PendingRequest
from .request_queue import LimitQueue, permit_interval
from .request_resources import RequestResources

__all__ = ["Actions"]

logger: logging.Logger = logging.getLogger("celery_ratelimit")

#: Seconds after which what could not be published is tried again.
AGAIN = 1.0


class Actions:
    """Carries out actions, in one worker."""

    def __init__(
        self,
        worker: Worker,
        clock: StoreClock,
        outage: Outage,
        prefetch: HeldRequests,
        resources: RequestResources,
        reporter: Reporter,
        batch: ParkingBatch,
        deduplication: Deduplication,
    ) -> None:
        self._worker, self._clock, self._outage, self._prefetch = worker, clock, outage, prefetch
        self._resources, self._reporter, self._batch, self._deduplication = resources, reporter, batch, deduplication

    def apply(self, limit_queue: LimitQueue, pending: PendingRequest, action: Action, now: float) -> bool:
        """Carry out an action. Returns whether the queue may go on; else it waits for a time or a process."""
        if pending.gone:  # the connection was lost while a greenlet waited: the broker has it
            self._resources.release_lease(pending)
            return False
        if self._worker.is_stopping:
            return False  # it stays until the gate is closed
        match action:
            case Start(permit_at_us):
                self._start(limit_queue, pending, permit_at_us)
            case StartAt(at, permit_at_us):
                self._resources.grant(limit_queue, pending, at, permit_at_us)
                limit_queue.needs_process = limit_queue.needs_process or at <= now
                wait = at - now
                if wait > pending.plan.policy.inline_wait and pending.plan.policy.throttle == "wait":
                    self._reporter.announce(pending, ThrottleReport("waiting", wait, pending.demands[0]))
            case RetryAt(at, has_reservation):
                if at is None:
                    limit_queue.enqueue(pending, has_reservation=has_reservation)
                else:
                    limit_queue.defer(pending, at, has_reservation=has_reservation)
            case BlockQueue():
                self._stay(limit_queue, pending, action, now)
                return False
            case Park():
                return self._park(limit_queue, pending, action, now)
            case Republish():
                self._send_back(limit_queue, pending, action, now)
            case GiveUp():
                self._end(limit_queue, pending, action, now)
            case DropDuplicate():
                self._resources.leave(limit_queue, pending)
                self._deduplication.end(pending)
            case Fail(error):
                self._leave_for_good(limit_queue, pending)
                self._reporter.failed(pending, error, without_store=isinstance(error, STORE_TROUBLES))
                requests.fail(pending.request, error)
        return True

    # -- It stays --------------------------------------------------------------------------------------------------

    def _stay(self, limit_queue: LimitQueue, pending: PendingRequest, action: BlockQueue, now: float) -> None:
        if action.until is None:
            limit_queue.needs_process = True
            return
        limit_queue.next_acquire = action.until
        if action.demand is not None:
            self._reporter.announce(pending, outcome_of(limit_queue, pending, action.demand, action.wait, now))
            if self._worker.consumption.prefetch_is_full:
                self._prefetch.suspend(pending, limit_queue, now)
            elif self._worker.consumption.has_several_queues:
                self._prefetch.widen(pending)

    def _hold_on(self, limit_queue: LimitQueue, pending: PendingRequest, error: Exception, now: float) -> None:
        """Keep a message that could not be published: it is unacknowledged, and is published again in a moment.

        A lost connection is raised: Celery connects anew, and the broker delivers the message again.
        """
        if isinstance(error, self._worker.broker.connection_errors):
            raise error
        logger.warning(
            "Task %s[%s] could not be sent back (%r): held, and tried again",
            *(pending.request.name, pending.request.id, error),
        )
        limit_queue.next_acquire = now + AGAIN
        limit_queue.defer(pending, limit_queue.next_acquire)

    # -- It starts -------------------------------------------------------------------------------------------------

    def _start(self, limit_queue: LimitQueue, pending: PendingRequest, permit_at_us: int) -> None:
        if self._resources.start(limit_queue, pending):
            permit = self._reporter.started(pending, permit_at_us)
            requests.remove_marker(pending.request)
            self._worker.start(pending.request, permit)

    # -- It waits elsewhere ----------------------------------------------------------------------------------------

    def _park(self, limit_queue: LimitQueue, pending: PendingRequest, action: Park, now: float) -> bool:
        if self._outage:
            limit_queue.next_acquire = now + POLL_INTERVAL
            return False
        try:
            self._worker.return_addresses.address(pending.queue)
        except Exception as error:  # of the broker
            self._hold_on(limit_queue, pending, error, now)
            return True
        self._batch.add(limit_queue, pending, action, now)
        return True

    def on_parked(self, park: PendingPark, result: ParkResult | None) -> None:
        """A request is parked, or not.

        ``None``: the store refuses to serve, or has not answered for as long as a message may be held.
        """
        queue, pending, action, now = park.limit_queue, park.pending, park.action, monotonic()
        demand, interval = action.demand, permit_interval(queue, action.demand)
        if result is None:
            self._send_back(queue, pending, Republish(self._outage.pause() + RETURN_EARLY), now)
        elif result.outcome == "empty":
            pass  # it asks by itself
        elif result.outcome == "replaced":
            self._leave_for_good(queue, pending)
            self._deduplication.end_coalesced(pending, result.survivor)
        elif result.outcome in ("full", "no_room"):
            wait = action.wait + result.ahead * interval
            full = result.outcome == "no_room"
            self._end(queue, pending, GiveUp(pending.plan.policy.overflow, demand, wait, full), now)
        else:
            why = outcome_of(queue, pending, demand, action.wait + result.ahead * interval, now, what="parked")
            self._resources.leave(queue, pending)
            self._reporter.announce(pending, why)

    def _send_back(self, limit_queue: LimitQueue, pending: PendingRequest, action: Republish, now: float) -> None:
        delay = min(action.wait, self._worker.broker.max_hold(pending.queue)) - RETURN_EARLY
        try:
            back = self._worker.return_addresses.address(pending.queue)
            slot_us = self._clock.slot_in(delay + RETURN_EARLY)
            self._worker.republisher.send_back(pending.request, pending.queue, back, delay, slot_us)
        except Exception as error:
            self._hold_on(limit_queue, pending, error, now)
            return
        demand = action.demand or (None if self._outage else pending.demands[0])
        why = outcome_of(limit_queue, pending, demand, action.wait, now) if demand else ThrottleReport("", action.wait)
        self._deduplication.forget(pending)
        self._resources.leave(limit_queue, pending)
        self._reporter.announce(pending, replace(why, what="returned"))

    # -- It ends ---------------------------------------------------------------------------------------------------

    def _end(self, limit_queue: LimitQueue, pending: PendingRequest, action: GiveUp, now: float) -> None:
        how = action.how
        why = outcome_of(limit_queue, pending, action.demand, action.wait, now, action.queue_full)
        why = why.given_up(how, pending.plan.policy)
        if why.to is not None:
            try:
                self._worker.republisher.redirect(pending.request, why.to)
            except Exception as error:
                self._hold_on(limit_queue, pending, error, now)
                return
        self._leave_for_good(limit_queue, pending)
        self._reporter.announce(pending, why)
        if how == "drop":
            requests.revoke(pending.request, "dropped", why.reason)
        elif how == "fail":
            requests.fail(pending.request, why.error)

    def _leave_for_good(self, limit_queue: LimitQueue, pending: PendingRequest) -> None:
        """The task will not run here: its reservation is given back."""
        self._resources.leave(limit_queue, pending)
        self._resources.give_up_slot(pending)

    def drop_if_revoked(self, limit_queue: LimitQueue, pending: PendingRequest) -> bool:
        """End a request that was revoked or has expired, or that its broker would have. Returns whether it has left."""
        is_late = requests.is_past_deadline(pending.request, self._clock.now)
        if not is_late and not pending.request.revoked():
            return False
        self._leave_for_good(limit_queue, pending)
        if is_late and not self._deduplication.ends(pending):
            requests.reject(pending.request)
        return True

    def drop_if_duplicate(self, limit_queue: LimitQueue, pending: PendingRequest) -> bool:
        """End a request that is about to ask or to be parked, if another copy may run. Returns whether it has left."""
        if not self._deduplication.ends_unchecked(pending):
            return False
        self._resources.leave(limit_queue, pending)
        return True
