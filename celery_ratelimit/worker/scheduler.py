"""Moves lines on: starts those whose time has come, and asks for those whose turn it is to ask."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterable, Sequence

from .._celery import Worker
from ..limits.decision import Decision
from .actions import Actions
from .admission import POLL_INTERVAL, PermitClient
from .batch_selection import BatchSelector
from .capacity import PoolCapacity
from .clock import monotonic
from .concurrency import ConcurrencyLeases
from .error_attribution import ErrorAttribution
from .flow_control import ReturnQueueConsumption
from .in_flight_acquires import AcquireCall, InFlightAcquires
from .pool_scheduler import PoolScheduler
from .queue_timers import QueueTimers
from .request import PendingRequest
from .request_queue import ASK_EARLY, LimitQueue
from .request_queues import RequestQueues
from .request_resources import RequestResources
from .rules import (
    BUNCHED,
    Acquire,
    BlockQueue,
    RetryAt,
    before_acquire,
    on_timer,
)

__all__ = ["Scheduler"]

logger = logging.getLogger("celery_ratelimit")

#: Seconds after its time at which a task is late, and lines of which it is asked, those first that wait the longest.
LATE, LOOKED_AT = 0.005, 10


class Scheduler:
    """Moves the lines of one worker on.

    Args:
        worker: the worker.
        admission: of the store.
        sent: questions for whose answers the worker does not wait.
        resources: what requests have.
        capacity: of the pool.
        queues: who waits.
        pool_scheduler: who has the next process.
        actions: carries out what is decided.
        reach: whether what comes back stays here.
        leases: those that no request here has asked for are free when the lines have been moved on.
        on_error: gets a request and what was raised at it that nobody has foreseen.

    Attributes:
        attribution: the request that is looked at.
    """

    def __init__(
        self,
        worker: Worker,
        admission: PermitClient,
        sent: InFlightAcquires,
        resources: RequestResources,
        capacity: PoolCapacity,
        queues: RequestQueues,
        pool_scheduler: PoolScheduler,
        actions: Actions,
        reach: ReturnQueueConsumption,
        leases: ConcurrencyLeases,
        on_error: Callable[[PendingRequest, Exception], None],
    ) -> None:
        self._worker, self._admission, self._in_flight = worker, admission, sent
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
        self._is_running = self._again = False

    def note_changed(self, names: set[str]) -> None:
        """Who waits for a time that was said at another rate asks again, in the next turn of its line."""
        self._changed |= names

    def run(self, queues: Iterable[LimitQueue] = ()) -> None:
        """Move lines on. A task may run to its end inside ``start`` (solo pool) and come back here: then once more."""
        if self._worker.is_stopping:  # nothing starts any more; leases go to other workers
            self._leases.release_ended()
            return
        if self._is_running:
            self._again = True
            return
        self._is_running = True
        try:
            while True:
                self._put_back_early()
                if self._pool_scheduler.unlimited_starving(monotonic()) and self._capacity.idle() > 0:
                    self._pool_scheduler.start_unlimited(monotonic(), owed=True)
                for limit_queue in queues:
                    self._move(limit_queue)
                self._admit()
                self._return_queues.update(monotonic())
                if not self._again or self._worker.is_stopping:
                    break
                self._again = False
                queues = list(self._queues)
        finally:
            self._is_running = False
            self._leases.release_ended()
            if (self._queues.needing_process or len(self._pool_scheduler)) and self._cancel_look is None:
                self._cancel_look = self._worker.timers.call_after(POLL_INTERVAL, self._look)

    def is_late(self) -> bool:
        """Whether somebody's turn has passed while this worker had other things to do: a process is there for it, or
        is in a moment, or the worker hears of it late. Where all are busy for longer, nobody waits for the worker.
        """
        now = monotonic()
        queues = (self._queues.get(key) for key in itertools.islice(self._queues.needing_process, LOOKED_AT))
        late = any(limit_queue is not None and limit_queue.is_late(now - LATE) for limit_queue in queues)
        return late and (self._capacity.store.is_far or not self._capacity.is_saturated(now, ASK_EARLY))

    def store_is_back(self) -> None:
        """Everybody may ask."""
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
                self._in_flight.note_changed(limit_queue)

    def _admit(self) -> None:
        """Free processes are for those who wait: first for who has its turn, then in the order in which they came."""
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
            return  # nobody is in it any more
        limit_queue.needs_process = False
        try:
            self._move_on(limit_queue)
        finally:  # whatever is raised, those who are left in it go on
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
        """Start and ask for whom it can. Whoever something unforeseen happens to leaves the line, and it goes on."""
        while True:
            self.attribution.pair = None
            try:
                if (asked := self._in_flight.take(limit_queue)) is not None:
                    self._hear(limit_queue, asked)
                    if asked.is_void:
                        limit_queue.ask_all_again()
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
        while asking and not limit_queue.is_asking:
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
        """For the first of those who ask, and for others who would ask the same next."""
        together = self._selector.select(limit_queue, first, asking, monotonic()) if for_permit else [first]
        asked = AcquireCall(together, for_permit)
        if self._in_flight.may_send(together):
            self._in_flight.send(limit_queue, asked)
            return False
        asked.admission = self._admission.ask(limit_queue, together, for_permit=for_permit)
        return self._hear(limit_queue, asked)

    def _hear(self, limit_queue: LimitQueue, asked: AcquireCall) -> bool:
        """What the store has said of each. Returns whether the line may go on."""
        if asked.error is not None:
            self.attribution.pair = limit_queue, asked.those[0]
            raise asked.error
        goes_on, waits_in_worker = True, False
        for pending, answer in zip(asked.those, asked.admission or (), strict=False):
            if waits_in_worker and isinstance(answer, Decision) and not answer.allowed:
                continue  # it is asked for with the one at the head, whose turn comes first
            with self.attribution.contains(limit_queue, pending):
                action = self._admission.action(limit_queue, pending, answer, for_permit=asked.for_permit, at=asked.at)
                goes_on = self._actions.apply(limit_queue, pending, action, monotonic())
                waits_in_worker = waits_in_worker or isinstance(action, BlockQueue)
        return goes_on and not waits_in_worker
