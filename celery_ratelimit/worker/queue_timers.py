"""When each line is looked at again: one timer a line."""

from __future__ import annotations

from collections.abc import Callable

from .._celery import Worker
from .clock import monotonic
from .request_queue import LimitQueue
from .request_queues import RequestQueues

__all__ = ["QueueTimers"]


class QueueTimers:
    """The timers of one worker's lines.

    Args:
        worker: has the timers.
        queues: hear when somebody has its turn.
        max_hold: seconds after which a line is looked at in any case.
        ring: is called with a line whose time has come.
    """

    def __init__(
        self, worker: Worker, queues: RequestQueues, max_hold: float, ring: Callable[[LimitQueue], None]
    ) -> None:
        self._worker, self._queues, self._longest, self._ring = worker, queues, max_hold, ring

    def set(self, limit_queue: LimitQueue) -> None:
        """The line is looked at when the first of it has its turn, or may ask."""
        now = monotonic()
        turn, alarm = limit_queue.times(now, self._longest)
        self._queues.note_wakeup(limit_queue, turn)
        if limit_queue.cancel is not None:
            if limit_queue.alarm <= alarm:
                return
            limit_queue.cancel()
        limit_queue.alarm = alarm
        limit_queue.cancel = self._worker.timers.call_after(max(0.0, alarm - now), lambda: self._goes_off(limit_queue))

    def _goes_off(self, limit_queue: LimitQueue) -> None:
        limit_queue.cancel = None
        self._ring(limit_queue)
