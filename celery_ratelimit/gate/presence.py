"""What it means for the worker that requests are in its gate: its prefetch, and the queues that it consumes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .._celery import MOST_RETURNED, Worker
from .held import HeldRequest, State
from .line import Line
from .room import AHEAD, Room
from .suspended import SuspendedQueues, Waiting

__all__ = ["Presence"]


class Presence:
    """Counts who is in the gate.

    Args:
        worker: the worker.
        room: of its pool.

    Attributes:
        limited: requests with limits that are held.
    """

    def __init__(self, worker: Worker, room: Room) -> None:
        self._worker, self._room = worker, room
        self._suspended = SuspendedQueues(worker, self.widen)
        self._outside = 0
        self.limited = 0

    def enter(self, waiting: Waiting) -> None:
        self._room.held += 1
        self.limited += isinstance(waiting, HeldRequest)

    def widen(self, waiting: Waiting) -> None:
        """What waits here for its turn is not to keep others out, unless there are very many."""
        if self._outside < MOST_RETURNED and not waiting.outside_prefetch:
            self._outside += 1
            waiting.outside_prefetch = True
            self._worker.intake.widen()

    def suspend(self, held: HeldRequest, line: Line, now: float) -> None:
        """Its queue is not consumed for now, if those who came from it will be here for long."""
        first = max(0.0, line.closed_until - now)
        # Or what the broker hands out of all queues would soon be of this one; or nothing, for too long.
        each = line.interval or max(demand.interval * demand.cost for demand in held.demands)
        waits = not line.open or first + (len(line) - 1) * each > AHEAD
        among_others = self._worker.intake.has_several_queues and waits
        if among_others or 0 < first + len(line) * line.interval < self._worker.broker.hears_after:
            self.widen(held)
        self._suspended.leave(held, [*line.with_slot, *line.new], first, lambda: line.interval)

    def suspend_if_it_stays(self, held: HeldRequest, line: Line, now: float) -> None:
        """The same for one that has just come."""
        stays = held.plan.policy.throttle == "wait" and held.state is State.ASKS
        if stays and (not held.returned or self._worker.intake.is_full):
            self.suspend(held, line, now)

    def suspend_unlimited(self, waiting: Waiting, among: Sequence[Waiting], each: Callable[[], float]) -> None:
        """The same for a request that nothing limits; ``each``: seconds from one of them to the next."""
        if len(among) * each() < self._worker.broker.hears_after:
            self.widen(waiting)
        if self.limited and self._worker.intake.has_several_queues:
            self._suspended.leave(waiting, among, 0.0, each)

    def leave(self, waiting: Waiting) -> None:
        """It is not in the gate any more."""
        self._room.held -= 1
        self.limited -= isinstance(waiting, HeldRequest)
        if waiting.outside_prefetch:
            self._outside -= 1
            self._worker.intake.narrow()
        self._suspended.one_has_gone(waiting)

    def clear(self) -> None:
        """The connection is lost, or the worker stops: nobody is held."""
        self.limited = self._outside = 0
        self._room.clear()
        self._suspended.clear()
