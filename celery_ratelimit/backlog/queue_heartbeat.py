"""Which queues one worker consumes, and which queues any worker consumes: only their tasks get slots."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from .._celery import Worker
from ..limiter.outage import Outage
from .backlog import Backlog
from .fleet_registry import Attendance
from .reaper import Reaper
from .store_calls import Asks
from .waking import Waking

__all__ = ["QueueHeartbeat"]

#: Seconds after which a worker says again which queues it consumes, and after which it is taken for dead.
ATTEND, ATTENDED = 2.0, 6.0
#: The same where nobody is parked: no slot is given to anybody.
ATTEND_IDLE, ATTENDED_IDLE = 20.0, 50.0


class QueueHeartbeat:
    """What one worker says of its queues, and hears of all.

    Args:
        worker: the worker.
        parking: the lots.
        return_queue_for: the queue that a task comes back by.
        outage: while it lasts nobody asks the store.
        reaper: hears when this worker consumes other queues.
        waking: brings tasks back whose queue is consumed again.

    Attributes:
        heard: what the store said last.
    """

    def __init__(
        self,
        worker: Worker,
        parking: Backlog,
        return_queue_for: Callable[[str], str],
        outage: Outage,
        reaper: Reaper,
        waking: Waking,
    ) -> None:
        self._worker, self._parking, self._return_queue_for = worker, parking, return_queue_for
        self._outage, self._reaper, self._waking = outage, reaper, waking
        self.heard: Attendance | None = None
        self._attends: frozenset[str] = frozenset()
        self._attended_at = self._recall_until = 0.0

    def _queues(self) -> frozenset[str]:
        """The queues whose tasks come here when they leave their lots: by their return queues."""
        before, behind = self._return_queue_for("\0").split("\0")  # what they are called is known once it consumes
        return frozenset(
            [
                queue[len(before) : len(queue) - len(behind)]
                if queue.startswith(before) and queue.endswith(behind) and len(queue) > len(before) + len(behind)
                else queue
                for queue in self._worker.consumption.queues
            ]
        )

    def says(self, *, is_idle: bool) -> Asks[None]:
        """Say which queues this worker consumes, and hear which no worker does: no slot is given to their tasks."""
        queues = self._queues()
        pause, lasts = (ATTEND_IDLE, ATTENDED_IDLE) if is_idle else (ATTEND, ATTENDED)
        if queues == self._attends and time.monotonic() < self._attended_at + pause:
            return
        absent = self.heard.absent if self.heard is not None else None
        given_up = sorted(self._attends - queues)
        attend = self._parking.register.attend
        heard: Attendance = yield partial(attend, self._worker.hostname, sorted(queues), given_up, lasts)
        self.heard = heard
        begun = queues - self._attends
        self._attends, self._attended_at = queues, time.monotonic()
        if begun:  # a worker that has not heard of it may set their tasks aside anew, and end before it hears
            self._recall_until = self._attended_at + ATTENDED
            self._reaper.report_now()
        new = absent is None or absent - heard.absent  # what was so before the first answer is not known
        if new or self._attended_at < self._recall_until:
            self._waking.recall()

    def end(self) -> None:
        """This worker ends, or connects anew: others need not wait until it is taken for dead."""
        given_up, self._attends, self.heard = sorted(self._attends), frozenset(), None
        if given_up and self._parking.can_park:
            self._outage.ask(
                lambda: self._parking.register.attend(self._worker.hostname, (), given_up, 0.0), None, quietly=True
            )
