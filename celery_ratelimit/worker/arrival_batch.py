"""Requests that come in together: their lines move on when all are there, so that they ask and are parked together."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from .._celery import Worker
from ..parking.attendant import Attendant
from ..store.script import load_source
from .actions import Actions
from .capacity import PoolCapacity
from .clock import monotonic
from .flow_control import PrefetchAccounting
from .in_flight_acquires import InFlightAcquires
from .parking_batch import PendingPark
from .request import PendingRequest
from .request_queue import LimitQueue
from .request_queues import RequestQueues
from .scheduler import Scheduler

__all__ = ["ArrivalBatch"]

logger = logging.getLogger("celery_ratelimit")

#: How often those that have come together are moved on together: should their lot be empty, the first of them asks, and
#: the others are parked behind it.
ROUNDS = 2


class ArrivalBatch:
    """Who is just coming in, with the message that is being delivered.

    Args:
        worker: the worker.
        attendant: knows who is parked.
        capacity: of the pool.
        queues: who waits.
        prefetch: of those who stay.
        actions: parks.
        sent: questions for whose answers the worker does not wait.
        scheduler: moves lines on.
    """

    def __init__(
        self,
        worker: Worker,
        attendant: Attendant,
        capacity: PoolCapacity,
        queues: RequestQueues,
        prefetch: PrefetchAccounting,
        actions: Actions,
        sent: InFlightAcquires,
        scheduler: Scheduler,
    ) -> None:
        self._worker, self._attendant, self._capacity, self._queues = worker, attendant, capacity, queues
        self._prefetch, self._actions, self._in_flight, self._scheduler = prefetch, actions, sent, scheduler
        self._come: list[tuple[LimitQueue, PendingRequest]] = []
        self._cancel: Callable[[], None] | None = None
        actions.batch.on_wait, sent.on_answer = self._park_later, self._go_on
        worker.intake.rest_while(scheduler.is_late)
        worker.together.set_up(load_source("broker/take", ()), worker.timers.contained(self._all_have_come))

    def add(self, limit_queue: LimitQueue, pending: PendingRequest) -> bool:
        """Whether it comes together with others. A newcomer brings those behind it in its queue along."""
        if not pending.returned:
            self._gather(limit_queue, pending)
        if self._worker.together.is_at_it:
            self._come.append((limit_queue, pending))
            return True
        return False

    def comes_back(self, message: Any) -> None:
        """A message has come that was parked: others come back with it."""
        self._worker.together.gather(message, self._capacity.short_term_capacity(str(message.headers.get("task"))))

    def clear(self) -> None:
        self._come.clear()
        self._in_flight.clear()
        self._actions.batch.clear()
        self._cancel_parking()

    def _cancel_parking(self) -> None:
        if self._cancel is not None:
            self._cancel()
            self._cancel = None

    def _gather(self, limit_queue: LimitQueue, pending: PendingRequest) -> None:
        """Those behind it come in with it, if they are to be parked as well, or could start."""
        request = pending.request
        if self._attendant.occupied.lot_of(pending.demands) is not None:
            self._worker.together.gather(request.message)
        elif pending.plan.policy.throttle != "wait" or limit_queue.closed_until <= monotonic():
            self._worker.together.gather(request.message, self._capacity.short_term_capacity(request.task.name))

    def _all_have_come(self) -> None:
        come, self._come = self._come, []
        if not come:
            return
        self._go_on(*dict.fromkeys(limit_queue for limit_queue, _ in come))
        for limit_queue, pending in come:
            self._prefetch.suspend_if_it_stays(pending, limit_queue, monotonic())

    def _go_on(self, *queues: LimitQueue) -> None:
        """These lines are moved on, and whoever stands behind others that are parked is parked by one script."""
        batch = self._actions.batch
        for _ in range(ROUNDS):
            with self._contained(), batch.collecting():
                self._scheduler.run(queues)
            queues = tuple(self._queues)
            if batch.flush_delay() > 0:
                self._park_later()
                break
            with self._contained():
                queues = tuple(batch.flush(self._has_parked, self._are_parked))
        self._scheduler.run(queues)

    def _are_parked(self, queues: Sequence[LimitQueue]) -> None:
        """The answer has come for which the worker did not wait; others may have come meanwhile."""
        self._cancel_parking()
        self._go_on(*queues)

    def _park_later(self) -> None:
        """Somebody waits for others, for a while."""
        pause = self._actions.batch.flush_delay()
        if self._cancel is None or pause <= 0:
            self._cancel_parking()
            self._cancel = self._worker.timers.call_after(pause, self._park)

    def _park(self) -> None:
        self._cancel = None
        batch = self._actions.batch
        if batch.flush_delay() > 0:
            self._park_later()
            return
        queues: Sequence[LimitQueue] = list(self._queues)
        with self._contained():
            queues = batch.flush(self._has_parked, self._are_parked)
        self._scheduler.run(queues)

    @contextmanager
    def _contained(self) -> Iterator[None]:
        """Whatever is raised, those that have come in together go on."""
        try:
            yield
        except Exception as error:
            if isinstance(error, self._worker.broker.connection_errors):
                raise
            logger.error("%r where tasks come in together: each goes on alone", error, exc_info=True)

    def _has_parked(self, leaving: PendingPark, ahead: int | None) -> None:
        with self._scheduler.attribution.contains(leaving.limit_queue, leaving.pending):
            self._actions.on_parked(leaving, ahead)
