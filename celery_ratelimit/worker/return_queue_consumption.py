"""What comes back is for workers that can run it: one whose processes are all busy for long leaves it to others.

A task that has come back here could wait for hours behind long tasks, its slot unused, while another worker has nothing
to do. At the broker it waits for whichever process is free first.
"""

from __future__ import annotations

from collections.abc import Callable

from .._celery import Worker, requests
from .capacity import PoolCapacity
from .request import PendingRequest

__all__ = ["ReturnQueueConsumption"]


class ReturnQueueConsumption:
    """Whether one worker takes what comes back.

    Args:
        worker: the worker.
        capacity: of its pool.
        on_leave: called soon after it has begun to leave that to others, to let go of what is here.

    Attributes:
        has_left: others take what comes back, for now, and what goes back to the broker from here.
    """

    def __init__(self, worker: Worker, capacity: PoolCapacity, on_leave: Callable[[], None]) -> None:
        self._worker, self._capacity, self._on_leave = worker, capacity, on_leave
        self._is_left = self.has_left = False

    def look(self, now: float) -> None:
        """A process has become free, or busy; or something has come back."""
        is_out = self._capacity.is_saturated(now)
        if is_out == self._is_left or (is_out and not self._are_there_others()):
            return
        self._is_left, self.has_left = is_out, False
        self._worker.intake.leave_returned_to_others(is_out, self._left)
        if not is_out and self._worker.intake.does_anybody_wait_to_return():
            self._capacity.keep_for_returned(now)

    def _left(self) -> None:
        self.has_left = True
        self._worker.timers.call_after(0, self._on_leave)

    def leaves(self, pending: PendingRequest) -> bool:
        """Whether a request that asks goes to another worker."""
        return self.has_left and pending.returned and requests.came_beside(pending.request)

    def _are_there_others(self) -> bool:
        return not self._worker.can_gossip or self._worker.live_workers() > 1
