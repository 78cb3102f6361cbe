"""Controls what one worker receives: its prefetch, the queues that it suspends for a while, and its return queues.

A new request brings the messages behind it in its queue along: one script asks for all of them, and one parks them.
Requests that wait in the worker keep other messages out. They are taken out of the prefetch, or their queue is not
consumed for now. A worker whose processes are all busy for long stops consuming the return queues, and sends back what
has returned: at the broker a task waits for the process that is free first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any

from .._celery import MAX_RETURNED, Worker, requests
from .._celery.saved_message import marker_in
from ..backlog.return_scheduler import ReturnScheduler
from ..store.script import load_source
from .capacity import AHEAD, LISTEN, PoolCapacity
from .request import PendingRequest, State, UnlimitedRequest
from .request_queue import LimitQueue

__all__ = ["ArrivalBatch", "HeldRequests", "ReturnQueueConsumption"]

#: Seconds; a queue whose messages would wait here for longer is left alone for a while. Some times what it takes to go
#: on: kombu waits for what it has asked Redis for, from other queues, for up to a second.
LONG = 3.0

QueuedRequest = PendingRequest | UnlimitedRequest


class HeldRequests:
    """Counts the requests in the worker, and stops consuming a queue for a while whose requests wait here for long.

    Attributes:
        limited: requests with limits that are held.
    """

    def __init__(self, worker: Worker, capacity: PoolCapacity) -> None:
        self._worker, self._capacity = worker, capacity
        self._long = max(LONG, 2 * worker.broker.poll_delay)
        # By suspended queue: its requests that still wait here, and what tells the seconds from one to the next.
        self._suspended: dict[str, tuple[set[QueuedRequest], Callable[[], float]]] = {}
        self.limited: int = 0
        self._outside = 0

    def enter(self, waiting: QueuedRequest) -> None:
        self._capacity.pending += 1
        self.limited += isinstance(waiting, PendingRequest)

    def widen(self, waiting: QueuedRequest) -> None:
        """Take a request that waits out of the prefetch, so that another message can come; not of very many."""
        if self._outside < MAX_RETURNED and not waiting.outside_prefetch:
            self._outside += 1
            waiting.outside_prefetch = True
            self._worker.consumption.prefetch.widen(1)

    def leave(self, waiting: QueuedRequest) -> None:
        """A request has left the gate."""
        self._capacity.pending -= 1
        self.limited -= isinstance(waiting, PendingRequest)
        if waiting.outside_prefetch:
            self._outside -= 1
            self._worker.consumption.prefetch.widen(-1)
        self._resume(waiting)

    def _resume(self, waiting: QueuedRequest) -> None:
        """Consume the queue of a request that has left again, while the last ones of it wait."""
        if waiting.queue in self._suspended:
            others, each = self._suspended[waiting.queue]
            others.discard(waiting)
            if not others or len(others) * each() <= self._long / 2:
                del self._suspended[waiting.queue]
                self._worker.consumption.resume_queue(waiting.queue)

    def clear(self) -> None:
        """The connection is lost, or the worker stops: no request is here."""
        self.limited = self._outside = 0
        self._capacity.clear()
        self._suspended.clear()

    def suspend(self, pending: PendingRequest, limit_queue: LimitQueue, now: float) -> None:
        """Stop consuming its queue for now, if the requests from it will be here for long."""
        first = max(0.0, limit_queue.closed_until - now)
        # Or what the broker hands out of all queues would soon be of this one; or nothing, for too long.
        each = limit_queue.interval or max(demand.interval * demand.cost for demand in pending.demands)
        waits = not limit_queue.permit_available or first + (len(limit_queue) - 1) * each > AHEAD
        among_others = self._worker.consumption.has_several_queues and waits
        if among_others or 0 < first + len(limit_queue) * limit_queue.interval < self._worker.broker.poll_delay:
            self.widen(pending)
        self._suspend(pending, [*limit_queue.reserved, *limit_queue.new], first, lambda: limit_queue.interval)

    def suspend_if_it_stays(self, pending: PendingRequest, limit_queue: LimitQueue) -> None:
        """Suspend the queue of a request that has just come, and waits."""
        waits_in_worker = pending.plan.policy.throttle == "wait" and pending.state is State.QUEUED
        if waits_in_worker and (not pending.returned or self._worker.consumption.prefetch_is_full):
            self.suspend(pending, limit_queue, monotonic())

    def suspend_unlimited(
        self, waiting: QueuedRequest, among: Sequence[QueuedRequest], each: Callable[[], float]
    ) -> None:
        """Suspend the queue of an unlimited request; ``each``: seconds from one start to the next."""
        if len(among) * each() < self._worker.broker.poll_delay:
            self.widen(waiting)
        if self.limited and self._worker.consumption.has_several_queues:
            self._suspend(waiting, among, 0.0, each)

    def _suspend(
        self, pending: QueuedRequest, among: Sequence[QueuedRequest], first: float, each: Callable[[], float]
    ) -> None:
        """Suspend the queue of a request that waits, if the requests from it will wait here for long.

        Args:
            among: all requests that wait with it, for the same.
            first: seconds until the first of them goes.
            each: tells the seconds from one to the next.
        """
        queue, waiting = pending.queue, [pending]
        if queue not in self._suspended:  # else it was on its way
            waiting = [other for other in among if other.queue == queue]
            wait = first + (len(waiting) - 1) * each() if len(waiting) > 1 else first
            if wait < self._long or not self._worker.consumption.may_pause_queue(queue):
                return
            self._worker.consumption.pause_queue(queue)
            self._suspended[queue] = (set(), each)
        self._suspended[queue][0].update(waiting)
        for other in waiting:
            if not requests.via_return_queue(other.request):
                self.widen(other)


class ReturnQueueConsumption:
    """Whether one worker consumes its return queues.

    Args:
        dispatch: called soon after the return queues are left, to send back what has returned, and when the worker has
            listened to them again for a moment.

    Attributes:
        has_left: the return queues are not consumed, and what is sent back does not come here again.
    """

    def __init__(self, worker: Worker, capacity: PoolCapacity, dispatch: Callable[[], None]) -> None:
        self._worker, self._capacity, self._dispatch = worker, capacity, dispatch
        self._is_left = False
        self.has_left: bool = False

    def update(self, now: float) -> None:
        """A process has become free, or busy; or a task has returned."""
        saturated = self._capacity.is_saturated(now)
        if saturated == self._is_left or (saturated and not self._are_there_others()):
            return
        self._is_left, self.has_left = saturated, False
        self._worker.consumption.pause_return_queues(saturated, self._left)
        self._capacity.note_saturated(now, saturated=saturated)
        if not saturated:
            self._worker.timers.call_after(LISTEN, self._dispatch)

    def must_republish(self, pending: PendingRequest, now: float, *, may_start: bool) -> bool:
        """Whether a request goes back to the broker, for another worker."""
        if self.has_left:
            return pending.returned and requests.via_return_queue(pending.request)
        may_return = pending.plan.policy.throttle == "retry" and not may_start
        return may_return and self._capacity.gives_back(now, pending.request.task.name)

    def _left(self) -> None:
        self.has_left = True
        self._worker.timers.call_after(0, self._dispatch)

    def _are_there_others(self) -> bool:
        return not self._worker.can_gossip or self._worker.live_workers() > 1


class ArrivalBatch:
    """The requests that arrive with the message that is being delivered.

    Args:
        dispatch: called with the queues of the requests when all of them are here.
    """

    def __init__(
        self,
        worker: Worker,
        attendant: ReturnScheduler,
        capacity: PoolCapacity,
        prefetch: HeldRequests,
        dispatch: Callable[[list[LimitQueue]], None],
    ) -> None:
        self._bulk_receive, self._occupied, self._capacity = worker.bulk_receive, attendant.occupied, capacity
        self._prefetch, self._dispatch = prefetch, dispatch
        self._arrived: list[tuple[LimitQueue, PendingRequest]] = []
        self._bulk_receive.configure(load_source("broker/fetch_batch"), worker.timers.guarded(self._on_all_arrived))

    def add(self, limit_queue: LimitQueue, pending: PendingRequest) -> bool:
        """Whether a request arrives together with others. The messages behind a new one are received with it, if they
        are to be parked as well, or could start.
        """
        message, plan = pending.request.message, pending.plan
        if not pending.returned:
            if pending.parks and self._occupied.lot_of(pending.demands) is not None:
                self._bulk_receive.request_more(message)
            elif plan.policy.throttle != "wait" or limit_queue.closed_until <= monotonic():
                self.request_as_many_as_run(message, pending.request.task.name)
        if self._bulk_receive.receiving:
            self._arrived.append((limit_queue, pending))
        return self._bulk_receive.receiving

    def request_as_many_as_run(self, message: Any, name: str) -> None:
        """Receive the messages behind one, as many as the pool can run of its task; a returned one runs itself."""
        self._bulk_receive.request_more(message, self._capacity.short_term_capacity(name) - bool(marker_in(message)))

    def clear(self) -> None:
        """The connection is lost, or the worker stops."""
        self._arrived.clear()

    def _on_all_arrived(self) -> None:
        arrived, self._arrived = self._arrived, []
        self._dispatch(list(dict.fromkeys(limit_queue for limit_queue, _ in arrived)))
        for limit_queue, pending in arrived:
            self._prefetch.suspend_if_it_stays(pending, limit_queue)
