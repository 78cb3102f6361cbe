"""Places: who waits for them, how many are asked for at once, and what gives them back."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..app.plan import Plan
from ..limiter.asker import Asker
from ..limiter.calls import Asking
from ..limiter.durations import microseconds
from ..limits.decision import Decision
from .asked_for import claim, horizon
from .clock import monotonic
from .ear import Ear
from .handing import Handing
from .held import HeldRequest
from .line import Line
from .room import Room

__all__ = ["MOST_TOGETHER", "Places"]

#: Requests that ask together, at the most.
MOST_TOGETHER = 16
#: Seconds after which all that wait here for places say so, and how many of them at the most.
LINE_UP, MOST_WAITING = 1.0, 32


class Places:
    """Of one worker.

    Args:
        asker: the way to the store.
        ear: hears that a place may be free.
        handing: places that are given back.
        room: of the pool.
        parks: whether tasks of a plan may wait in the store.
        ahead: seconds ahead that a permit may be taken.
    """

    def __init__(
        self,
        asker: Asker,
        ear: Ear,
        handing: Handing,
        room: Room,
        parks: Callable[[Plan], bool],
        ahead: Callable[[], float],
    ) -> None:
        self._asker, self._ear, self._handing, self._room = asker, ear, handing, room
        self._parks, self._ahead = parks, ahead

    def together(self, line: Line) -> int:
        """How many may ask at once: one that no process is for would only stand in the way of others."""
        return MOST_WAITING if self._lines_up(line) else self._most()

    def ask(self, line: Line, asking: Sequence[HeldRequest], *, for_permit: bool) -> list[Decision]:
        """What has ended here gives its places back in the same step."""
        first, ended = asking[0], self._handing.going_to(asking[0].demands)
        lines_up = len(asking) > 1 and self._lines_up(line)
        if lines_up:
            line.lined_up = monotonic()
        if first.stays:
            line.ear = self._ear.name_of(line)
        said = self._asker.hand_on(
            first.demands,
            Asking(
                [held.id for held in asking],
                microseconds(horizon(first, self._ahead())),
                microseconds(claim(first, parks=self._parks(first.plan))),
                line.ear if first.stays else "",
                self._most() if for_permit else 0,
                lines_up,
            ),
            ended,
        )
        self._handing.given(ended)
        return said

    def _most(self) -> int:
        """How many may have places now: each is held from then on, so there has to be a process for it."""
        return max(1, min(MOST_TOGETHER, self._room.free(monotonic())))

    def _lines_up(self, line: Line) -> bool:
        """Whether it is time for those of a line that wait for places to say so, or their slots would be others'."""
        return monotonic() - line.lined_up >= LINE_UP and bool(line.with_slot)
