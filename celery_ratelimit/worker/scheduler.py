"""Dispatches the request queues: starts requests whose time has come, and acquires permits for the next ones."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from .._celery import Worker
from ..limits.decision import Decision
from ..parking.asks import Reply
from .actions import Actions
from .admission import POLL_INTERVAL, PermitClient
from .batch_selection import BatchSelector
from .capacity import PoolCapacity
from .clock import monotonic
from .concurrency import ConcurrencyLeases
from .error_attribution import ErrorAttribution
from .flow_control import ReturnQueueConsumption
from .parking_batch import PendingPark
from .pool_scheduler import PoolScheduler
from .queue_timers import QueueTimers
from .request import AcquireCall, PendingRequest
from .request_queue import ASK_EARLY, LimitQueue
from .request_queues import RequestQueues
from .request_resources import RequestResources
from .rules import BUNCHED, Acquire, BlockQueue, RetryAt, before_acquire, on_timer

__all__ = ["Scheduler"]

logger = logging.getLogger("celery_ratelimit")

#: Seconds after its time at which a task is late; and how many queues are looked at for one, the longest waiting first.
LATE, LOOKED_AT = 0.005, 10


class Scheduler:
    """Moves the lines of one worker on.

    Args:
        worker: the worker.
        admission: of the store.
        resources: what requests have.
        capacity: of the pool.
        queues: the requests that wait.
        pool_scheduler: decides which request has the next process.
        actions: carries out what is decided.
        reach: whether what comes back stays here.
        leases: at the end of a pass it releases what ended tasks held and no request here has taken over.
        on_error: called with a request and an unforeseen error that was raised at it.

    Attributes:
        attribution: the request that is looked at.
    """

    def __init__(
        self,
        worker: Worker,
        admission: PermitClient,
        resources: RequestResources,
        capacity: PoolCapacity,
        queues: RequestQueues,
        pool_scheduler: PoolScheduler,
        actions: Actions,
        reach: ReturnQueueConsumption,
        leases: ConcurrencyLeases,
        on_error: Callable[[PendingRequest, Exception], None],
    ) -> None:
        self._worker, self._admission = worker, admission
        self._resources, self._capacity, self._queues, self._pool_scheduler, self._actions = (
            resources,
            capacity,
            queues,
            pool_scheduler,
            actions,
        )
        self._return_queues, self._leases = reach, leases
        self.attribution = ErrorAttribution(worker, on_error)
        self._selector = BatchSelector(admission, capacity, actions, self.attribution)
        self._alarms = QueueTimers(
            *(
                worker,
                capacity.turns,
                pool_scheduler.early,
                actions.max_hold,
                lambda limit_queue: self.run([limit_queue]),
            )
        )
        self._cancel_look: Callable[[], None] | None = None
        self._changed: set[str] = set()
        self._ready: dict[LimitQueue, None] = {}
        self._is_running = self._again = False

    def note_changed(self, names: set[str]) -> None:
        """These limits have changed: requests that wait for a time at the old rate ask again."""
        self._changed |= names

    def run(self, queues: Iterable[LimitQueue] = ()) -> None:
        """Move lines on. A task may run to its end inside ``start`` (solo pool) and come back here: then once more."""
        if self._worker.is_stopping:  # nothing starts any more; leases go to other workers
            self._leases.release_ended()
            return
        self._ready.update(dict.fromkeys(queues))
        if self._is_running:
            self._again = True
            return
        self._is_running = True
        try:
            while True:
                ready, self._ready, self._again = self._ready, {}, False
                self._put_back_early()
                if self._pool_scheduler.unlimited_starving(monotonic()) and self._capacity.idle() > 0:
                    self._pool_scheduler.start_unlimited(monotonic(), owed=True)
                for limit_queue in ready:
                    self._move(limit_queue)
                self._admit()
                self._return_queues.update(monotonic())
                if not self._worker.bulk_receive.receiving:  # one script parks all that arrive with one delivery
                    self._actions.batch.flush(self._is_parked, self.run)
                if not self._again or self._worker.is_stopping:
                    break
        finally:
            self._is_running = False
            self._leases.release_ended()
            waiting = self._queues.needing_process or len(self._pool_scheduler) or len(self._actions.batch)
            if waiting and self._cancel_look is None:
                self._cancel_look = self._worker.timers.call_after(POLL_INTERVAL, self._look)

    def is_late(self) -> bool:
        """Whether a turn has passed while this worker had other things to do: a process is free for it, or is in a
        moment, or the worker hears of it late. Where all processes are busy for longer, the worker is not late.
        """
        now = monotonic()
        queues = (self._queues.get(key) for key in itertools.islice(self._queues.needing_process, LOOKED_AT))
        late = any(limit_queue is not None and limit_queue.is_late(now - LATE) for limit_queue in queues)
        return late and (self._capacity.store.is_far or not self._capacity.is_saturated(now, ASK_EARLY))

    def store_is_back(self) -> None:
        """All queues may ask."""
        self._admission.store_is_back()
        for limit_queue in self._queues:
            limit_queue.next_ask = 0.0
        self.run(self._queues)

    def close(self) -> None:
        if self._cancel_look is not None:
            self._cancel_look()
            self._cancel_look = None

    def _look(self) -> None:
        self._cancel_look = None
        self.run(
            [limit_queue for key in self._queues.needing_process if (limit_queue := self._queues.get(key)) is not None]
        )

    def _put_back_early(self) -> None:
        """Only between two turns of a line."""
        names, self._changed = self._changed, set()
        for limit_queue in self._queues if names else ():
            if any(name in names for name, _ in limit_queue.key):
                limit_queue.ask_all_again()
                if limit_queue.acquire is not None:  # its reply is about what was before
                    limit_queue.acquire.is_void = True

    def _admit(self) -> None:
        """Give free processes to waiting requests: first where the turn has come, then in the order of arrival."""
        while True:
            for key in list(self._queues.needing_process):
                if self._capacity.idle() <= 0 and not self._capacity.has_for_permit(monotonic()):
                    break
                limit_queue = self._queues.get(key)
                if (
                    limit_queue is not None
                    and key in self._queues.needing_process
                    and not self._pool_scheduler.unlimited_first(limit_queue)
                ):
                    del self._queues.needing_process[key]
                    self._move(limit_queue)  # and behind the others, if it wants another process
            if not self._pool_scheduler.start_unlimited(monotonic()):
                return

    # -- One line --------------------------------------------------------------------------------------------------

    def _move(self, limit_queue: LimitQueue) -> None:
        if self._queues.get(limit_queue.key) is not limit_queue:
            return  # it is empty, and has ended
        limit_queue.needs_process = False
        try:
            self._move_on(limit_queue)
        finally:  # whatever is raised, the other requests in it go on
            if (
                self._queues.get(limit_queue.key) is limit_queue
            ):  # else the connection was lost while a greenlet was here
                if limit_queue:
                    self._alarms.set(limit_queue)
                    self._queues.update_need(limit_queue)
                else:
                    self._queues.end(limit_queue)
                    self._alarms.end(limit_queue)

    def _move_on(self, limit_queue: LimitQueue) -> None:
        """Start and acquire what can be. A request at which an unforeseen error is raised leaves; the queue goes on."""
        while True:
            self.attribution.pair = None
            try:
                if limit_queue.acquire is not None and limit_queue.acquire.reply is not None:
                    self._hear(limit_queue, limit_queue.acquire)
                self._start_due(limit_queue)
                self._ask_for(limit_queue, has_reservation=True)
                self._ask_for(limit_queue, has_reservation=False)
            except Exception as error:
                if not self.attribution.ends_by(error):
                    raise
            else:
                self.attribution.pair = None
                return

    def _start_due(self, limit_queue: LimitQueue) -> None:
        again: list[PendingRequest] = []
        while pending := limit_queue.due.first(now := monotonic()):
            self.attribution.pair = limit_queue, pending
            is_late = now - pending.at > BUNCHED  # sooner it does not matter how many are late
            together = is_late and limit_queue.due.are_late_together(now)
            action = on_timer(pending, now, together=together, is_idle=self._capacity.idle() > 0)
            if isinstance(action, BlockQueue):
                limit_queue.needs_process = True
                return
            if isinstance(action, RetryAt):
                self._resources.recall(limit_queue, pending, behind=again)
                again.append(pending)
            elif not self._actions.apply(limit_queue, pending, action, now):
                return  # the worker is stopping

    def _ask_for(self, limit_queue: LimitQueue, *, has_reservation: bool) -> None:
        asking = limit_queue.with_slot if has_reservation else limit_queue.new
        while asking and limit_queue.acquire is None:
            pending = asking[0]
            self.attribution.pair = limit_queue, pending
            if self._actions.drop_if_finished(limit_queue, pending):
                continue
            now = monotonic()
            may_start = self._pool_scheduler.may_start(limit_queue, has_reservation=has_reservation, now=now)
            lot, leaves = self._actions.lot_to_join(pending), self._return_queues.must_republish(pending)
            parks = self._actions.parks(pending.plan)
            action = before_acquire(pending, limit_queue, now, lot=lot, may_start=may_start, parks=parks, leaves=leaves)
            if isinstance(action, Acquire):
                goes_on = self._ask(limit_queue, pending, asking, for_permit=action.for_permit)
                self._start_due(limit_queue)  # the answer may have taken long
            else:
                goes_on = self._actions.apply(limit_queue, pending, action, now)
            if not goes_on:
                return

    def _ask(
        self, limit_queue: LimitQueue, first: PendingRequest, asking: Sequence[PendingRequest], *, for_permit: bool
    ) -> bool:
        """Acquire for the first queued request, and for others that would ask for the same next."""
        together = self._selector.select(limit_queue, first, asking, monotonic()) if for_permit else [first]
        call = AcquireCall(together, for_permit)

        def is_answered(reply: Reply[Any]) -> None:
            call.reply = reply
            if call.is_late:  # else the queue is just being moved on
                self.run([limit_queue])
                self._resources.end_acquiring(limit_queue, call)  # if the queue has ended meanwhile

        self._resources.start_acquiring(limit_queue, call)
        try:
            self._admission.acquire(limit_queue, call, is_answered)
        except BaseException:
            self._resources.end_acquiring(limit_queue, call)
            raise
        call.is_late = call.reply is None
        return call.reply is not None and self._hear(limit_queue, call)

    def _is_parked(self, park: PendingPark, ahead: Reply[int | None]) -> None:
        with self.attribution.contains(park.limit_queue, park.pending):
            self._actions.on_parked(park, ahead.get())

    def _hear(self, limit_queue: LimitQueue, call: AcquireCall) -> bool:
        """What the store has said of each. Returns whether the queue may go on."""
        self._resources.end_acquiring(limit_queue, call)
        first, reply = call.requests[0], call.reply
        assert reply is not None
        self.attribution.pair = limit_queue, first
        answers = self._admission.answers(first, reply)
        goes_on, waits_in_worker = True, False
        for pending, answer in zip(call.requests, answers, strict=False):
            if waits_in_worker and isinstance(answer, Decision) and not answer.allowed:
                continue  # it is asked for with the one at the head, whose turn comes first
            with self.attribution.contains(limit_queue, pending):
                action = self._admission.action(limit_queue, pending, answer, for_permit=call.for_permit, at=reply.at)
                goes_on = self._actions.apply(limit_queue, pending, action, monotonic())
                waits_in_worker = waits_in_worker or isinstance(action, BlockQueue)
        if call.is_void:
            limit_queue.ask_all_again()
        return goes_on and not waits_in_worker
