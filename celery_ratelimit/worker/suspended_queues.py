"""Queues that are left alone for a while: their messages would only wait in the worker, in the way of other queues'."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from .._celery import Worker, requests

__all__ = ["QueuedRequest", "SuspendedQueues"]

#: Seconds; a queue whose messages would wait here for longer is left alone for a while. Some times what it takes to go
#: on: kombu waits for what it has asked Redis for, from other queues, for up to a second.
LONG = 3.0


class QueuedRequest(Protocol):
    """A request in the gate. ``outside_prefetch``: it does not count against the worker's prefetch."""

    request: Any
    queue: str
    outside_prefetch: bool


class SuspendedQueues:
    """The queues that a worker does not consume for now, and who of them still waits in it.

    Args:
        worker: the worker.
        widen: takes a request out of what counts against the worker's prefetch.
    """

    def __init__(self, worker: Worker, widen: Callable[[QueuedRequest], None]) -> None:
        self._worker = worker
        self._long = max(LONG, 2 * worker.broker.hears_after)
        self._widen = widen
        self._queues: dict[str, tuple[set[QueuedRequest], Callable[[], float]]] = {}

    def suspend(
        self, pending: QueuedRequest, among: Sequence[QueuedRequest], first: float, each: Callable[[], float]
    ) -> None:
        """``pending`` waits: its queue is left alone, if those that came from it will be there for long.

        Args:
            pending: a request that waits.
            among: all who wait with it, for the same.
            first: seconds until the first of them goes.
            each: tells the seconds from one to the next.
        """
        queue = pending.queue
        if queue in self._queues:  # it was on its way
            self._put_aside(pending)
            return
        waiting = [other for other in among if other.queue == queue]
        wait = first + (len(waiting) - 1) * each() if len(waiting) > 1 else first
        if wait < self._long or not self._worker.consuming.may_stop(queue):
            return
        self._worker.consuming.stop(queue)
        self._queues[queue] = (set(), each)
        for other in waiting:
            self._put_aside(other)

    def on_left(self, pending: QueuedRequest) -> None:
        """``pending`` waits no longer. Its queue is taken up again while the last of them wait."""
        if pending.queue not in self._queues:
            return
        waiting, each = self._queues[pending.queue]
        waiting.discard(pending)
        if not waiting or len(waiting) * each() <= self._long / 2:
            del self._queues[pending.queue]
            self._worker.consuming.go_on(pending.queue)

    def clear(self) -> None:
        """The connection is lost, or the worker stops: nothing is consumed."""
        self._queues.clear()

    def _put_aside(self, pending: QueuedRequest) -> None:
        self._queues[pending.queue][0].add(pending)
        if not pending.outside_prefetch and not requests.came_beside(pending.request):
            self._widen(pending)
