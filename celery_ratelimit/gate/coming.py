"""Requests that come in together: their lines move on when all are there, so that they ask and are parked together."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from .._celery import Worker
from ..parking.attendant import Attendant
from ..store.script import load_source
from .batch import Leaving
from .clock import monotonic
from .exits import Exits
from .held import HeldRequest
from .line import Line
from .lines import Lines
from .loop import Loop
from .presence import Presence
from .room import Room
from .sent import Sent

__all__ = ["Coming"]

logger = logging.getLogger("celery_ratelimit")

#: How often those that have come together are moved on together: should their lot be empty, the first of them asks, and
#: the others are parked behind it.
ROUNDS = 2


class Coming:
    """Who is just coming in, with the message that is being delivered.

    Args:
        worker: the worker.
        attendant: knows who is parked.
        room: of the pool.
        lines: who waits.
        presence: of those who stay.
        exits: parks.
        sent: questions for whose answers the worker does not wait.
        loop: moves lines on.
    """

    def __init__(
        self,
        worker: Worker,
        attendant: Attendant,
        room: Room,
        lines: Lines,
        presence: Presence,
        exits: Exits,
        sent: Sent,
        loop: Loop,
    ) -> None:
        self._worker, self._attendant, self._room, self._lines = worker, attendant, room, lines
        self._presence, self._exits, self._sent, self._loop = presence, exits, sent, loop
        self._come: list[tuple[Line, HeldRequest]] = []
        self._cancel: Callable[[], None] | None = None
        exits.batch.on_wait, sent.on_answer = self._park_later, self._go_on
        worker.intake.rest_while(loop.is_late)
        worker.together.set_up(load_source("broker/take", ()), worker.timers.contained(self._all_have_come))

    def add(self, line: Line, held: HeldRequest) -> bool:
        """Whether it comes together with others. A newcomer brings those behind it in its queue along."""
        if not held.returned:
            self._gather(line, held)
        if self._worker.together.is_at_it:
            self._come.append((line, held))
            return True
        return False

    def comes_back(self, message: Any) -> None:
        """A message has come that was parked: others come back with it."""
        self._worker.together.gather(message, self._room.in_a_moment(str(message.headers.get("task"))))

    def clear(self) -> None:
        self._come.clear()
        self._sent.clear()
        self._exits.batch.clear()
        self._cancel_parking()

    def _cancel_parking(self) -> None:
        if self._cancel is not None:
            self._cancel()
            self._cancel = None

    def _gather(self, line: Line, held: HeldRequest) -> None:
        """Those behind it come in with it, if they are to be parked as well, or could start."""
        request = held.request
        if self._attendant.occupied.lot_of(held.demands) is not None:
            self._worker.together.gather(request.message)
        elif held.plan.policy.throttle != "wait" or line.closed_until <= monotonic():
            self._worker.together.gather(request.message, self._room.in_a_moment(request.task.name))

    def _all_have_come(self) -> None:
        come, self._come = self._come, []
        if not come:
            return
        self._go_on(*dict.fromkeys(line for line, _ in come))
        for line, held in come:
            self._presence.suspend_if_it_stays(held, line, monotonic())

    def _go_on(self, *lines: Line) -> None:
        """These lines are moved on, and whoever stands behind others that are parked is parked by one script."""
        batch = self._exits.batch
        for _ in range(ROUNDS):
            with self._contained(), batch.open():
                self._loop.run(lines)
            lines = tuple(self._lines)
            if batch.pause() > 0:
                self._park_later()
                break
            with self._contained():
                lines = tuple(batch.park(self._has_parked, self._are_parked))
        self._loop.run(lines)

    def _are_parked(self, lines: Sequence[Line]) -> None:
        """The answer has come for which the worker did not wait; others may have come meanwhile."""
        self._cancel_parking()
        self._go_on(*lines)

    def _park_later(self) -> None:
        """Somebody waits for others, for a while."""
        pause = self._exits.batch.pause()
        if self._cancel is None or pause <= 0:
            self._cancel_parking()
            self._cancel = self._worker.timers.call_after(pause, self._park)

    def _park(self) -> None:
        self._cancel = None
        batch = self._exits.batch
        if batch.pause() > 0:
            self._park_later()
            return
        lines: Sequence[Line] = list(self._lines)
        with self._contained():
            lines = batch.park(self._has_parked, self._are_parked)
        self._loop.run(lines)

    @contextmanager
    def _contained(self) -> Iterator[None]:
        """Whatever is raised, those that have come in together go on."""
        try:
            yield
        except Exception as error:
            if isinstance(error, self._worker.broker.connection_errors):
                raise
            logger.error("%r where tasks come in together: each goes on alone", error, exc_info=True)

    def _has_parked(self, leaving: Leaving, ahead: int | None) -> None:
        with self._loop.at_hand.contains(leaving.line, leaving.held):
            self._exits.parked_together(leaving, ahead)
