"""The one entrance to the pool: who has the next process that is free.

Whoever has its turn goes first, then everybody in the order of arrival. Where limited tasks could use the whole pool,
tasks without limits have a small share of it.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from .._celery import Worker
from .held import Unlimited
from .line import ASK_EARLY, Line
from .lines import Lines
from .presence import Presence
from .room import AHEAD, Room

__all__ = ["Entrance"]


class Entrance:
    """Requests that nothing limits, and whether it is their turn or somebody else's.

    Args:
        worker: the worker.
        room: of its pool.
        lines: of those who are limited.
        presence: who is in the gate.
    """

    def __init__(self, worker: Worker, room: Room, lines: Lines, presence: Presence) -> None:
        self._worker, self._room, self._lines, self._presence = worker, room, lines, presence
        self._unlimited: deque[Unlimited] = deque()
        self._passed: tuple[float, Any] | None = None  # when the last one of these was started, and which it was

    def __len__(self) -> int:
        return len(self._unlimited)

    def add(self, waiting: Unlimited) -> None:
        self._unlimited.append(waiting)
        self._presence.enter(waiting)

    def suspend_if_last(self, waiting: Unlimited) -> None:
        """It has come last, and still waits."""
        if self._unlimited and self._unlimited[-1] is waiting:
            name = waiting.request.task.name
            self._presence.suspend_unlimited(waiting, self._unlimited, lambda: self._room.seconds_of_one(name))

    def is_one_owed(self, now: float) -> bool:
        """Whether limited tasks, more than the pool can run, would keep those without limits out for too long."""
        if not self._unlimited:
            return False
        since, pause = self._unlimited[0].since, self._room.pause_after("")
        if self._passed is not None:
            passed_at, request = self._passed
            if self._worker.pool.has(request):
                return False
            since, pause = max(since, passed_at), self._room.pause_after(request.task.name)
        return now - since >= pause

    def let_one_pass(self, now: float, *, owed: bool = False) -> bool:
        """Start the next request without limits, if nobody who waits is to have the process; or it is ``owed`` one."""
        if not self._unlimited:
            return False
        waiting = self._unlimited[0]
        request = waiting.request
        claims, turn = 0, float("inf")
        if not owed:
            lines = [self._lines.get(key) for key in self._lines.wanting]
            claims = sum(line is not None and not self.is_before(line) for line in lines)
            turn = min(self._lines.next_turn(now) + self.early(), self._room.coming.next_comer(now))
        if not self._room.for_unlimited(now, request.task.name, claims=claims, turn=turn):
            return False
        self._passed = now, request
        self._unlimited.popleft()
        self._presence.leave(waiting)
        waiting.on_start()
        self._worker.start(request, waiting.permit)
        return True

    def is_before(self, line: Line) -> bool:
        """Whether the first of a line goes behind the first without limits.

        Its limit is open, and was not closed to those who wait: they go in the order in which they came.
        """
        return bool(
            line.open and line.only_newcomers and self._unlimited and self._unlimited[0].number < line.new[0].number
        )

    def may_start(self, line: Line, *, has_slot: bool, now: float) -> bool:
        """Whether a process is there for the first of a line, with or without a slot."""
        if (line.with_slot and not has_slot) or self.is_before(line):
            return False
        return self._room.has_for_permit(now, owed=self.is_one_owed(now))

    def ahead(self) -> float:
        """Seconds ahead that a permit may be taken: no longer than a process may be kept for it."""
        return self._room.ahead(self._unlimited[0].request.task.name) if self._unlimited else AHEAD

    def early(self) -> float:
        """Seconds before its turn that a line asks.

        A process that is kept for a turn is kept for a permit: who asks only then, and hears that another worker was
        quicker, has kept it for nothing.
        """
        return self.ahead() if self._unlimited else ASK_EARLY

    def clear(self) -> None:
        self._unlimited.clear()
