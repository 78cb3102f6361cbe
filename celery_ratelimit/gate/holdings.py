"""What a request has while it is held, and gives back: a process that is kept for it, places, a slot in the store."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from .held import HeldRequest, State
from .line import Line
from .presence import Presence
from .room import Room
from .running import Running
from .slots import Slots

__all__ = ["Holdings"]

logger = logging.getLogger("celery_ratelimit")


class Holdings:
    """Moves requests so that nothing of them stays behind.

    Args:
        slots: in the store.
        room: keeps processes.
        presence: who is in the gate.
        running: has the places.
    """

    def __init__(self, slots: Slots, room: Room, presence: Presence, running: Running) -> None:
        self._slots, self._room, self._presence, self._running = slots, room, presence, running

    def hold(self, line: Line, held: HeldRequest, at: float, permit_at_us: int) -> None:
        """It has a permit that is good at that time: a process is kept for it."""
        line.hold(held, at, permit_at_us)
        self._room.promises.add(at, held.request.task.name)

    def recall(self, line: Line, held: HeldRequest, *, behind: Sequence[HeldRequest] = ()) -> None:
        """What it was told is void: it asks. A permit that was not used is lost; a place is free for others."""
        had_permit = held.state is State.HOLDS_PERMIT
        self._free_process(held)
        line.recall(held, behind=behind)
        if had_permit:
            self.give_back(held)

    def leave(self, line: Line, held: HeldRequest, *, starts: bool = False) -> None:
        """It is not in the gate any more. What ``starts`` keeps its places."""
        try:
            if not held.gone:
                self._free_process(held)
                line.leave(held)
                self._presence.leave(held)
        finally:
            if not starts:
                self.give_back(held)

    def take_out(self, line: Line, held: HeldRequest) -> None:
        """Something unforeseen was raised at it: it leaves, whatever it was doing, and what it has is given back."""
        try:
            self.leave(line, held, starts=held.request in self._running)
            self.forget_slot(held)
        except Exception as error:  # of the same cause, perhaps
            logger.error("Task %s[%s] goes, but %r", held.request.name, held.request.id, error, exc_info=error)

    def _free_process(self, held: HeldRequest) -> None:
        """If it holds a permit: no process is kept for it any more."""
        if held.state is State.HOLDS_PERMIT:
            self._room.promises.take_back(held.at)

    def give_back(self, held: HeldRequest) -> None:
        """Its places are free, if it has any."""
        if held.plan.leased:
            self._running.give_back(held)

    def forget_slot(self, held: HeldRequest) -> None:
        """Its slot is others'."""
        self._slots.forget(held)
