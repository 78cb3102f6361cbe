"""When each line is looked at again: one timer a line."""

from __future__ import annotations

from collections.abc import Callable

from .._celery import Worker
from .clock import monotonic
from .line import Line
from .lines import Lines

__all__ = ["Alarms"]


class Alarms:
    """The timers of one worker's lines.

    Args:
        worker: has the timers.
        lines: hear when somebody has its turn.
        longest: seconds after which a line is looked at in any case.
        ring: is called with a line whose time has come.
    """

    def __init__(self, worker: Worker, lines: Lines, longest: float, ring: Callable[[Line], None]) -> None:
        self._worker, self._lines, self._longest, self._ring = worker, lines, longest, ring

    def set(self, line: Line) -> None:
        """The line is looked at when the first of it has its turn, or may ask."""
        now = monotonic()
        turn, alarm = line.times(now, self._longest)
        self._lines.note_turn(line, turn)
        if line.cancel is not None:
            if line.alarm <= alarm:
                return
            line.cancel()
        line.alarm = alarm
        line.cancel = self._worker.timers.call_after(max(0.0, alarm - now), lambda: self._goes_off(line))

    def _goes_off(self, line: Line) -> None:
        line.cancel = None
        self._ring(line)
