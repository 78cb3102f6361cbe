"""Lines for whose answers the worker does not wait: the store is some way off, and meanwhile there is more to do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..limits.decision import Decision
from .answers import Answers
from .clock import monotonic
from .errands import Errands
from .held import HeldRequest
from .line import Line
from .room import Room
from .verdict import Verdict

__all__ = ["Asked", "Sent"]


@dataclass(slots=True, eq=False)
class Asked:
    """Requests of a line for which the store is asked, for permits or for slots alone; and what it has said, or what
    was raised that nobody has foreseen. ``at``: when the answer came, for which the worker did not wait; it ``is_void``
    for whoever was refused if the limit has changed meanwhile.
    """

    those: Sequence[HeldRequest]
    for_permit: bool
    answers: Sequence[Decision | Verdict | None] | None = None
    error: Exception | None = None
    at: float | None = None
    is_void: bool = False


class Sent:
    """Questions of one worker that are on their way, at the most one of each line: those behind it wait.

    Args:
        errands: ask.
        answers: of the store.
        room: keeps processes for what is asked for.

    Attributes:
        on_answer: called with a line whose answer has come.
    """

    def __init__(self, errands: Errands, answers: Answers, room: Room) -> None:
        self._errands, self._answers, self._room = errands, answers, room
        self._asked: dict[Line, Asked] = {}
        self.on_answer: Callable[[Line], None] = lambda line: None

    def may_send(self, those: Sequence[HeldRequest]) -> bool:
        """Whether the worker goes on, while these are asked for. Not for who has yet to hear whether it may run, nor
        for places, which are handed on in the same step.
        """
        return not those[0].plan.leased and all(held.is_checked for held in those) and self._errands.are_run

    def send(self, line: Line, asked: Asked) -> None:
        """Ask, and go on."""
        first, began = asked.those[0], monotonic()

        def is_back(decisions: Callable[[], Sequence[Decision]], at: float) -> None:
            asked.at = at
            try:
                asked.answers = self._answers.said_to(first, decisions, at - began)
            except Exception as error:
                asked.answers, asked.error = (), error
            if self._asked.get(line) is asked:
                self.on_answer(line)
            if self._asked.get(line) is asked and all(held.gone for held in asked.those):
                self.take(line)  # the line has ended, too

        self._asked[line] = asked
        line.is_asking = True
        if asked.for_permit:
            self._room.promises.ask_for(asked, len(asked.those), first.request.task.name)
        self._errands.run(self._answers.question(asked.those, for_permit=asked.for_permit), is_back)

    def note_changed(self, line: Line) -> None:
        """Its limits are others now: what it is just being told is about the old ones."""
        if line in self._asked:
            self._asked[line].is_void = True

    def take(self, line: Line) -> Asked | None:
        """What was asked for a line, if the answer is there."""
        asked = self._asked.get(line)
        if asked is None or asked.answers is None:
            return None
        del self._asked[line]
        line.is_asking = False
        self._room.promises.is_answered(asked)
        return asked

    def clear(self) -> None:
        """The connection is lost, or the worker stops: what is on its way is nobody's."""
        self._asked.clear()
