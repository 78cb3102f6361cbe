"""Queues that are left alone for a while: their messages would only wait in the worker, in the way of other queues'."""

from __future__ import annotations

import time
from collections.abc import Callable

from ._celery import Worker
from .line import Held, Line

__all__ = ["LeftQueues"]

#: Seconds; a queue whose messages would wait for longer under ``throttle="wait"`` is left alone for a while. Some times
#: what it takes to go on: kombu waits for what it has asked Redis for, from other queues, for up to a second.
LONG = 3.0


class LeftQueues:
    """The queues that a worker does not consume for now, and who of them still waits in it.

    Args:
        worker: the worker.
        widen: takes a request out of what counts against the worker's prefetch.
    """

    def __init__(self, worker: Worker, widen: Callable[[Held], None]) -> None:
        self._worker = worker
        self._widen = widen
        self._queues: dict[str, tuple[set[Held], Line]] = {}

    def leave(self, held: Held, line: Line) -> None:
        """``held`` waits in ``line``: its queue is left alone, if those that came from it will be there for long."""
        queue = held.queue
        if queue in self._queues:  # it was on its way
            self._put_aside(held)
            return
        waiting = [each for each in (*line.slotted, *line.new) if each.queue == queue]
        wait = max(0.0, line.closed_until - time.monotonic()) + (len(waiting) - 1) * line.interval
        if wait < LONG or not self._worker.may_stop_consuming(queue):
            return
        self._worker.stop_consuming(queue)
        self._queues[queue] = (set(), line)
        for each in waiting:
            self._put_aside(each)

    def one_has_gone(self, held: Held) -> None:
        """``held`` waits no longer. Its queue is taken up again while the last of them wait."""
        if held.queue not in self._queues:
            return
        waiting, line = self._queues[held.queue]
        waiting.discard(held)
        if len(waiting) * line.interval <= LONG / 2:
            del self._queues[held.queue]
            self._worker.go_on_consuming(held.queue)

    def clear(self) -> None:
        """The connection is lost, or the worker stops: nothing is consumed."""
        self._queues.clear()

    def _put_aside(self, held: Held) -> None:
        self._queues[held.queue][0].add(held)
        if not held.widened and not self._worker.came_beside(held.request):
            self._widen(held)
