"""Places: who waits for them, how many are asked for at once, and what gives them back."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..app.plan import Plan
from ..limiter.asker import Asker
from ..limiter.calls import Asking
from ..limiter.durations import microseconds
from ..limits.decision import Decision
from .capacity import PoolCapacity
from .clock import monotonic
from .lease_handover import LeaseHandover
from .lease_notifications import LeaseNotifications
from .permit_terms import claim, max_lookahead
from .request import PendingRequest
from .request_queue import LimitQueue, task_name

__all__ = ["MAX_BATCH", "ConcurrencyLeases"]

#: Requests that ask together, at the most.
MAX_BATCH = 16
#: Seconds after which all that wait here for places say so, and how many of them at the most.
LINE_UP, MOST_WAITING = 1.0, 32


class ConcurrencyLeases:
    """Of one worker.

    Args:
        asker: the way to the store.
        ear: hears that a place may be free.
        handover: places that are given back.
        capacity: of the pool.
        parks: whether tasks of a plan may wait in the store.
        ahead: seconds ahead that a permit may be taken.
    """

    def __init__(
        self,
        asker: Asker,
        ear: LeaseNotifications,
        handover: LeaseHandover,
        capacity: PoolCapacity,
        parks: Callable[[Plan], bool],
        ahead: Callable[[], float],
    ) -> None:
        self._asker, self._notifications, self._handover, self._capacity = asker, ear, handover, capacity
        self._parks, self._ahead = parks, ahead

    def together(self, limit_queue: LimitQueue) -> int:
        """How many may ask at once: one that no process is for would only stand in the way of others."""
        return MOST_WAITING if self._lines_up(limit_queue) else self._most(limit_queue)

    def ask(self, limit_queue: LimitQueue, asking: Sequence[PendingRequest], *, for_permit: bool) -> list[Decision]:
        """What has ended here gives its places back in the same step."""
        first, ended = asking[0], self._handover.releases_for(asking[0].demands)
        lines_up = len(asking) > 1 and self._lines_up(limit_queue)
        if lines_up:
            limit_queue.announced_at = monotonic()
        if first.waits_in_worker:
            limit_queue.channel = self._notifications.name_of(limit_queue)
        said = self._asker.hand_on(
            first.demands,
            Asking(
                [pending.id for pending in asking],
                microseconds(max_lookahead(first, self._ahead())),
                microseconds(claim(first, parks=self._parks(first.plan))),
                limit_queue.channel if first.waits_in_worker else "",
                self._most(limit_queue) if for_permit else 0,
                lines_up,
            ),
            ended,
        )
        self._handover.confirm(ended)
        return said

    def _most(self, limit_queue: LimitQueue) -> int:
        """How many may have places now: each is held from then on, so there has to be a process for it."""
        return max(1, min(MAX_BATCH, self._capacity.free(monotonic(), task_name(limit_queue))))

    def _lines_up(self, limit_queue: LimitQueue) -> bool:
        """Whether it is time for those of a line that wait for places to say so, or their slots would be others'."""
        return monotonic() - limit_queue.announced_at >= LINE_UP and bool(limit_queue.with_slot)
