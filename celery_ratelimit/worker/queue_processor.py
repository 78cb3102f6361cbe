"""Processes one request queue: starts requests whose time has come, and acquires permits for the next ones."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import Any

from .._celery import Worker
from ..backlog.messages import ParkResult
from ..limits.decision import Decision
from ..store_calls.store_calls import Reply
from .admission import PermitClient
from .flow_control import ReturnQueueConsumption
from .next_action import BUNCHED, Acquire, BlockQueue, Park, RetryAt, before_acquire, on_timer
from .parking_batch import ParkingBatch, PendingPark
from .perform_action import Actions
from .pool_scheduler import PoolScheduler
from .request import AcquireCall, PendingRequest
from .request_queue import LimitQueue
from .request_resources import RequestResources

__all__ = ["CurrentRequest", "QueueProcessor"]


class CurrentRequest:
    """Remembers the request that is being handled, so that an unforeseen error ends its task and no other.

    Attributes:
        pair: the queue and the request, which may be leaving it; ``None``: no request is being handled.
    """

    def __init__(self, worker: Worker, on_error: Callable[[Any, Exception], None]) -> None:
        self._worker, self._on_error = worker, on_error
        self.pair: tuple[LimitQueue, PendingRequest] | None = None

    def ends_by(self, error: Exception) -> bool:
        """End the request at which an error was raised. False: the error concerns all, as a lost connection does."""
        if self.pair is None or isinstance(error, self._worker.broker.connection_errors):
            return False
        self._on_error(self.pair[1].request, error)
        return True

    @contextmanager
    def contains(self, limit_queue: LimitQueue, pending: PendingRequest) -> Iterator[None]:
        """Attribute errors that are raised in the block to this request."""
        self.pair = limit_queue, pending
        try:
            yield
        except Exception as error:
            self.pair = limit_queue, pending
            if not self.ends_by(error):
                raise
        finally:
            self.pair = None


class QueueProcessor:
    """Processes the queues of one worker, one at a time.

    Args:
        dispatch: called with queues when a reply comes later.
    """

    def __init__(
        self,
        admission: PermitClient,
        resources: RequestResources,
        pool_scheduler: PoolScheduler,
        batch: ParkingBatch,
        actions: Actions,
        return_queues: ReturnQueueConsumption,
        errors: CurrentRequest,
        dispatch: Callable[[list[LimitQueue]], None],
    ) -> None:
        self._admission, self._resources, self._pool_scheduler = admission, resources, pool_scheduler
        self._batch, self._actions, self._return_queues = batch, actions, return_queues
        self._errors, self._dispatch = errors, dispatch

    def move_on(self, limit_queue: LimitQueue) -> None:
        """Start and acquire what is possible. A request with an unforeseen error leaves; the queue goes on."""
        while True:
            self._errors.pair = None
            try:
                if limit_queue.acquire is not None and limit_queue.acquire.reply is not None:
                    self._handle_reply(limit_queue, limit_queue.acquire)
                self._start_due(limit_queue)
                self._ask_for(limit_queue, has_reservation=True)
                self._ask_for(limit_queue, has_reservation=False)
            except Exception as error:
                if not self._errors.ends_by(error):
                    raise
            else:
                self._errors.pair = None
                return

    def on_parked(self, park: PendingPark, reply: Reply[ParkResult | None]) -> None:
        """Handle the store's reply to a park. An error of this request ends only this request."""
        with self._errors.contains(park.limit_queue, park.pending):
            self._actions.on_parked(park, reply.get())

    def _start_due(self, limit_queue: LimitQueue) -> None:
        again: list[PendingRequest] = []
        while pending := limit_queue.due.first(now := monotonic()):
            self._errors.pair = limit_queue, pending
            is_late = now - pending.at > BUNCHED  # earlier, the number of late requests does not matter
            together = is_late and limit_queue.due.are_late_together(now)
            action = on_timer(pending, now, together=together, is_idle=self._pool_scheduler.has_idle)
            if isinstance(action, BlockQueue):
                limit_queue.needs_process = True
                return
            if isinstance(action, RetryAt):
                self._resources.requeue(limit_queue, pending, behind=again)
                again.append(pending)
            elif not self._actions.apply(limit_queue, pending, action, now):
                return  # the worker is stopping

    def _ask_for(self, limit_queue: LimitQueue, *, has_reservation: bool) -> None:
        asking = limit_queue.reserved if has_reservation else limit_queue.new
        while asking and limit_queue.acquire is None:
            pending = asking[0]
            self._errors.pair = limit_queue, pending
            if self._actions.drop_if_revoked(limit_queue, pending):
                continue
            now = monotonic()
            may_start = self._pool_scheduler.may_start(limit_queue, has_reservation=has_reservation, now=now)
            lot = self._batch.lot_to_join(pending)
            leaves = self._return_queues.must_republish(pending, now, may_start=may_start)
            action = before_acquire(
                pending, limit_queue, now, lot=lot, may_start=may_start, parks=pending.parks, leaves=leaves
            )
            if isinstance(action, (Acquire, Park)) and self._actions.drop_if_duplicate(limit_queue, pending):
                continue
            if isinstance(action, Acquire):
                goes_on = self._ask(limit_queue, pending, asking, for_permit=action.for_permit)
                self._start_due(limit_queue)  # the reply may have taken long
            else:
                goes_on = self._actions.apply(limit_queue, pending, action, now)
            if not goes_on:
                return

    def _ask(
        self, limit_queue: LimitQueue, first: PendingRequest, asking: Sequence[PendingRequest], *, for_permit: bool
    ) -> bool:
        """Acquire for the first queued request, and for the next ones with the same limit requests."""
        together = self._select(limit_queue, first, asking, monotonic()) if for_permit else [first]
        call = AcquireCall(together, for_permit)

        def is_answered(reply: Reply[Any]) -> None:
            call.reply = reply
            if call.is_late:  # else the queue is being processed right now
                self._dispatch([limit_queue])
                self._resources.end_acquiring(limit_queue, call)  # if the queue has ended meanwhile

        self._resources.start_acquiring(limit_queue, call)
        try:
            self._admission.acquire(limit_queue, call, is_answered)
        except BaseException:
            self._resources.end_acquiring(limit_queue, call)
            raise
        call.is_late = call.reply is None
        return call.reply is not None and self._handle_reply(limit_queue, call)

    def _select(
        self, limit_queue: LimitQueue, first: PendingRequest, asking: Sequence[PendingRequest], now: float
    ) -> list[PendingRequest]:
        """Select the first request and the requests that acquire with it.

        A request with a reservation takes its permit from no other. New requests compete with other workers, so no more
        of them than necessary. For leases, which are held from then on, as many as there are free processes.
        """
        if len(asking) < 2 or (first.plan.leased and not first.waits_in_worker):
            return [first]
        most = self._admission.batch_size(limit_queue, first)
        if not first.plan.leased:
            most = min(most, self._pool_scheduler.max_permits(limit_queue, first.request.task.name, now))
        together = [first]
        for pending in list(itertools.islice(asking, 1, most)):
            if len(together) >= most or now >= pending.release_deadline or not _asks_the_same(first, pending):
                break
            self._errors.pair = limit_queue, pending
            revoked = self._actions.drop_if_revoked(limit_queue, pending)
            if revoked or self._actions.drop_if_duplicate(limit_queue, pending):
                continue
            together.append(pending)
        self._errors.pair = limit_queue, first
        return together

    def _handle_reply(self, limit_queue: LimitQueue, call: AcquireCall) -> bool:
        """Apply the store's reply to each request. Returns whether the queue may go on."""
        self._resources.end_acquiring(limit_queue, call)
        first, reply = call.requests[0], call.reply
        assert reply is not None
        self._errors.pair = limit_queue, first
        answers = self._admission.answers(first, reply)
        goes_on, waits_in_worker = True, False
        for pending, answer in zip(call.requests, answers, strict=False):
            if waits_in_worker and isinstance(answer, Decision) and not answer.allowed:
                continue  # it acquires with the request at the head, whose slot comes first
            with self._errors.contains(limit_queue, pending):
                action = self._admission.action(limit_queue, pending, answer, for_permit=call.for_permit, at=reply.at)
                goes_on = self._actions.apply(limit_queue, pending, action, monotonic())
                waits_in_worker = waits_in_worker or isinstance(action, BlockQueue)
        if call.is_void:
            limit_queue.requeue_deferred()
        return goes_on and not waits_in_worker


def _asks_the_same(one: PendingRequest, other: PendingRequest) -> bool:
    return one.plan is other.plan and one.demands == other.demands
