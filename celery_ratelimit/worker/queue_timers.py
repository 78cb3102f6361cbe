"""When each request queue is looked at again: one timer a queue."""

from __future__ import annotations

from collections.abc import Callable

from .._celery import Worker
from .clock import monotonic
from .request_queue import LimitQueue, task_name
from .upcoming_turns import UpcomingTurns

__all__ = ["QueueTimers"]


class QueueTimers:
    """The timers of one worker's request queues.

    Args:
        worker: has the timers.
        turns: hears when the first request of a queue has its turn.
        lead_time: seconds before its turn that a queue asks.
        max_hold: seconds after which a queue is looked at in any case.
        ring: called with a queue whose time has come.
    """

    def __init__(
        self,
        worker: Worker,
        turns: UpcomingTurns,
        lead_time: Callable[[], float],
        max_hold: float,
        ring: Callable[[LimitQueue], None],
    ) -> None:
        self._worker, self._turns, self._lead_time = worker, turns, lead_time
        self._max_hold, self._ring = max_hold, ring

    def set(self, limit_queue: LimitQueue) -> None:
        """The queue is looked at when its first request has its turn, or may ask."""
        now = monotonic()
        turn, alarm = limit_queue.times(now, self._max_hold)
        self._note_turn(limit_queue, turn, now)
        if limit_queue.cancel is not None:
            if limit_queue.alarm <= alarm:
                return
            limit_queue.cancel()
        limit_queue.alarm = alarm
        limit_queue.cancel = self._worker.timers.call_after(max(0.0, alarm - now), lambda: self._goes_off(limit_queue))

    def end(self, limit_queue: LimitQueue) -> None:
        """No request is in the queue any more."""
        self._note_turn(limit_queue, 0.0, 0.0)

    def _note_turn(self, limit_queue: LimitQueue, turn: float, now: float) -> None:
        id = f"queue {limit_queue.number}"
        self._turns.pop(id)
        if turn:
            self._turns.expect(id, task_name(limit_queue), turn + self._lead_time(), now)

    def _goes_off(self, limit_queue: LimitQueue) -> None:
        limit_queue.cancel = None
        self._ring(limit_queue)
