"""Collects the requests that arrive with one delivery: one script asks for all of them, and one parks them."""

from __future__ import annotations

from typing import Any

from .._celery import Worker
from ..backlog.return_scheduler import ReturnScheduler
from ..store.script import load_source
from .capacity import PoolCapacity
from .clock import monotonic
from .flow_control import PrefetchAccounting
from .request import PendingRequest
from .request_queue import LimitQueue
from .scheduler import Scheduler

__all__ = ["ArrivalBatch"]


class ArrivalBatch:
    """The requests that arrive with the message that is being delivered.

    Args:
        worker: the worker.
        attendant: knows where tasks are parked.
        capacity: of the pool.
        prefetch: counts requests that stay.
        scheduler: dispatches their queues.
    """

    def __init__(
        self,
        worker: Worker,
        attendant: ReturnScheduler,
        capacity: PoolCapacity,
        prefetch: PrefetchAccounting,
        scheduler: Scheduler,
    ) -> None:
        self._worker, self._attendant, self._capacity = worker, attendant, capacity
        self._prefetch, self._scheduler = prefetch, scheduler
        self._arrived: list[tuple[LimitQueue, PendingRequest]] = []
        worker.consumption.pause_while(scheduler.is_late)
        worker.bulk_receive.configure(load_source("broker/take", ()), worker.timers.guarded(self._on_all_arrived))

    def add(self, limit_queue: LimitQueue, pending: PendingRequest) -> bool:
        """Whether it arrives together with others. A new request brings the messages behind it in its queue along."""
        if not pending.returned:
            self._request_more(limit_queue, pending)
        if self._worker.bulk_receive.receiving:
            self._arrived.append((limit_queue, pending))
            return True
        return False

    def request_returned(self, message: Any) -> None:
        """A message has come that was parked: others come back with it."""
        self._worker.bulk_receive.request_more(
            message, self._capacity.short_term_capacity(str(message.headers.get("task")))
        )

    def clear(self) -> None:
        """The connection is lost, or the worker stops."""
        self._arrived.clear()

    def _request_more(self, limit_queue: LimitQueue, pending: PendingRequest) -> None:
        """Receive the messages behind it too, if they are to be parked as well, or could start."""
        request = pending.request
        if self._attendant.occupied.lot_of(pending.demands) is not None:
            self._worker.bulk_receive.request_more(request.message)
        elif pending.plan.policy.throttle != "wait" or limit_queue.closed_until <= monotonic():
            self._worker.bulk_receive.request_more(
                request.message, self._capacity.short_term_capacity(request.task.name)
            )

    def _on_all_arrived(self) -> None:
        arrived, self._arrived = self._arrived, []
        self._scheduler.dispatch(dict.fromkeys(limit_queue for limit_queue, _ in arrived))
        for limit_queue, pending in arrived:
            self._prefetch.suspend_if_it_stays(pending, limit_queue, monotonic())
