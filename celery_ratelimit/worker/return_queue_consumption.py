"""A worker whose processes are all busy for long stops consuming the return queues, and sends back what has returned.

A returned task could wait for hours behind long tasks here, its slot unused, while another worker has nothing to do. At
the broker it waits for the process that is free first.
"""

from __future__ import annotations

from collections.abc import Callable

from .._celery import Worker, requests
from .capacity import PoolCapacity
from .request import PendingRequest

__all__ = ["ReturnQueueConsumption"]


class ReturnQueueConsumption:
    """Whether one worker consumes its return queues.

    Args:
        worker: the worker.
        capacity: of its pool.
        dispatch: called soon after the return queues are left, to send back what has returned, and when the worker has
            listened to them again for a moment.

    Attributes:
        has_left: the return queues are not consumed, and what is sent back does not come here again.
    """

    def __init__(self, worker: Worker, capacity: PoolCapacity, dispatch: Callable[[], None]) -> None:
        self._worker, self._capacity, self._dispatch = worker, capacity, dispatch
        self._is_left = self.has_left = False

    def update(self, now: float) -> None:
        """A process has become free, or busy; or a task has returned."""
        saturated = self._capacity.is_saturated(now)
        if saturated == self._is_left or (saturated and not self._are_there_others()):
            return
        self._is_left, self.has_left = saturated, False
        self._worker.intake.leave_returned_to_others(saturated, self._left)
        if listens := self._capacity.note_saturated(now, saturated=saturated):
            self._worker.timers.call_after(listens, self._dispatch)

    def must_republish(self, pending: PendingRequest) -> bool:
        """Whether a request goes back to the broker, for another worker."""
        return self.has_left and pending.returned and requests.came_beside(pending.request)

    def _left(self) -> None:
        self.has_left = True
        self._worker.timers.call_after(0, self._dispatch)

    def _are_there_others(self) -> bool:
        return not self._worker.can_gossip or self._worker.live_workers() > 1
