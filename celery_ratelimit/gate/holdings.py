"""What a request has while it is held, and gives back: a process that is kept for it, places, a slot in the store."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from ..app.plan import Plan
from ..limiter.limiter import Limiter
from ..limiter.outage import Outage
from .line import HeldRequest, Line, State
from .presence import Presence
from .room import Room
from .running import Running

__all__ = ["Holdings"]

logger = logging.getLogger("celery_ratelimit")


class Holdings:
    """Moves requests so that nothing of them stays behind.

    Args:
        limiter: has the slots.
        outage: of its store.
        room: keeps processes.
        presence: who is in the gate.
        running: has the places.
    """

    def __init__(self, limiter: Limiter, outage: Outage, room: Room, presence: Presence, running: Running) -> None:
        self._limiter, self._outage = limiter, outage
        self._room, self._presence, self._running = room, presence, running

    def hold(self, line: Line, held: HeldRequest, at: float, permit_at_us: int) -> None:
        """It has a permit that is good at that time: a process is kept for it."""
        line.hold(held, at, permit_at_us)
        self._room.promise(at, held.request.task.name)

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
            self._room.take_back(held.at)

    def give_back(self, held: HeldRequest) -> None:
        """Its places are free, if it has any."""
        if held.plan.leased:
            self._running.give_back(held)

    def forget_slot(self, held: HeldRequest) -> None:
        """Its slot is others'. While the store does not answer it lapses by itself."""
        self._outage.ask(lambda: self._limiter.forget(held.demands, id=held.id), None, quietly=True)

    def forget_slot_of(self, plan: Plan | None, context: Any, marker: Mapping[str, Any]) -> None:
        """The same for a task that never came to the gate. Raises what the user's key or cost raises."""
        if plan is None:
            return
        attempt = f"{context.id}.{context.retries}" if context.retries else context.id
        id = marker.get("id") or f"{attempt}@{marker.get('queue')}"
        demands = plan.demands(context.args, context.kwargs)
        self._outage.ask(lambda: self._limiter.forget(demands, id=id), None, quietly=True)
