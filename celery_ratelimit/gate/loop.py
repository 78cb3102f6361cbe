"""Moves lines on: starts those whose time has come, and asks for those whose turn it is to ask."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterable, Sequence

from .._celery import Worker
from ..limits.decision import Decision
from .alarms import Alarms
from .answers import LOOK, Answers
from .at_hand import AtHand
from .clock import monotonic
from .company import Company
from .entrance import Entrance
from .exits import Exits
from .handing import Handing
from .held import HeldRequest
from .holdings import Holdings
from .line import Line
from .lines import Lines
from .reach import Reach
from .room import Room
from .sent import Asked, Sent
from .verdict import (
    BUNCHED,
    Ask,
    AskAt,
    Stay,
    at_its_time,
    before_asking,
)

__all__ = ["Loop"]

logger = logging.getLogger("celery_ratelimit")

#: Seconds after its time at which a task is late, and lines of which it is asked, those first that wait the longest.
LATE, LOOKED_AT = 0.005, 10


class Loop:
    """Moves the lines of one worker on.

    Args:
        worker: the worker.
        answers: of the store.
        sent: questions for whose answers the worker does not wait.
        holdings: what requests have.
        room: of the pool.
        lines: who waits.
        entrance: who has the next process.
        exits: carries out what is decided.
        reach: whether what comes back stays here.
        handing: places that nobody here has asked for are free when the lines have been moved on.
        on_error: gets a request and what was raised at it that nobody has foreseen.

    Attributes:
        at_hand: the request that is looked at.
    """

    def __init__(
        self,
        worker: Worker,
        answers: Answers,
        sent: Sent,
        holdings: Holdings,
        room: Room,
        lines: Lines,
        entrance: Entrance,
        exits: Exits,
        reach: Reach,
        handing: Handing,
        on_error: Callable[[HeldRequest, Exception], None],
    ) -> None:
        self._worker, self._answers, self._sent = worker, answers, sent
        self._holdings, self._room, self._lines, self._entrance, self._exits = holdings, room, lines, entrance, exits
        self._reach, self._handing = reach, handing
        self.at_hand = AtHand(worker, on_error)
        self._company = Company(worker, answers, room, exits, self.at_hand)
        self._alarms = Alarms(worker, lines, exits.longest, lambda line: self.run([line]))
        self._cancel_look: Callable[[], None] | None = None
        self._changed: set[str] = set()
        self._is_running = self._again = False

    def note_changed(self, names: set[str]) -> None:
        """Who waits for a time that was said at another rate asks again, in the next turn of its line."""
        self._changed |= names

    def run(self, lines: Iterable[Line] = ()) -> None:
        """Move lines on. A task may run to its end inside ``start`` (solo pool) and come back here: then once more."""
        if self._is_running:
            self._again = True
            return
        self._is_running = True
        try:
            while True:
                self._put_back_early()
                if self._entrance.is_one_owed(monotonic()) and self._room.idle() > 0:
                    self._entrance.let_one_pass(monotonic(), owed=True)
                for line in lines:
                    self._move(line)
                self._admit()
                self._reach.look(monotonic())
                if not self._again:
                    break
                self._again = False
                lines = list(self._lines)
        finally:
            self._is_running = False
            self._handing.give_rest()
            if (self._lines.wanting or len(self._entrance)) and self._cancel_look is None:
                self._cancel_look = self._worker.timers.call_after(LOOK, self._look)

    def is_late(self) -> bool:
        """Whether somebody's turn has passed while this worker had other things to do: a process is there for it, or
        is in a moment, or the worker hears of it late. Where all are busy for longer, nobody waits for the worker.
        """
        now = monotonic()
        lines = (self._lines.get(key) for key in itertools.islice(self._lines.wanting, LOOKED_AT))
        late = any(line is not None and line.is_late(now - LATE) for line in lines)
        return late and (self._room.store.is_far or self._room.is_one_near(now))

    def store_is_back(self) -> None:
        """Everybody may ask."""
        self._answers.store_is_back()
        for line in self._lines:
            line.next_ask = 0.0
        self.run(self._lines)

    def close(self) -> None:
        if self._cancel_look is not None:
            self._cancel_look()
            self._cancel_look = None

    def _look(self) -> None:
        self._cancel_look = None
        self.run([line for key in self._lines.wanting if (line := self._lines.get(key)) is not None])

    def _put_back_early(self) -> None:
        """Only between two turns of a line."""
        names, self._changed = self._changed, set()
        for line in self._lines if names else ():
            if any(name in names for name, _ in line.key):
                line.ask_all_again()
                self._sent.note_changed(line)

    def _admit(self) -> None:
        """Free processes are for those who wait: first for who has its turn, then in the order in which they came."""
        while True:
            for key in list(self._lines.wanting):
                if self._room.idle() <= 0 and not self._room.has_for_permit(monotonic()):
                    break
                line = self._lines.get(key)
                if line is not None and key in self._lines.wanting and not self._entrance.is_before(line):
                    del self._lines.wanting[key]
                    self._move(line)  # and behind the others, if it wants another process
            if not self._entrance.let_one_pass(monotonic()):
                return

    # -- One line --------------------------------------------------------------------------------------------------

    def _move(self, line: Line) -> None:
        if self._lines.get(line.key) is not line:
            return  # nobody is in it any more
        line.wants = False
        try:
            self._move_on(line)
        finally:  # whatever is raised, those who are left in it go on
            if self._lines.get(line.key) is line:  # else the connection was lost while a greenlet was here
                if line:
                    self._alarms.set(line)
                    self._lines.wants(line)
                else:
                    self._lines.end(line)

    def _move_on(self, line: Line) -> None:
        """Start and ask for whom it can. Whoever something unforeseen happens to leaves the line, and it goes on."""
        while True:
            self.at_hand.pair = None
            try:
                if (asked := self._sent.take(line)) is not None:
                    self._hear(line, asked)
                    if asked.is_void:
                        line.ask_all_again()
                self._start_due(line)
                self._ask_for(line, has_slot=True)
                self._ask_for(line, has_slot=False)
            except Exception as error:
                if not self.at_hand.ends_by(error):
                    raise
            else:
                self.at_hand.pair = None
                return

    def _start_due(self, line: Line) -> None:
        again: list[HeldRequest] = []
        while held := line.due.first(now := monotonic()):
            self.at_hand.pair = line, held
            together = now - held.at > BUNCHED and line.due.are_late_together(now)  # sooner it does not matter
            verdict = at_its_time(held, now, together=together, is_idle=self._room.idle() > 0)
            if isinstance(verdict, Stay):
                line.wants = True
                return
            if isinstance(verdict, AskAt):
                self._holdings.recall(line, held, behind=again)
                again.append(held)
            else:
                self._exits.carry_out(line, held, verdict, now)

    def _ask_for(self, line: Line, *, has_slot: bool) -> None:
        asking = line.with_slot if has_slot else line.new
        while asking and not line.is_asking:
            held = asking[0]
            self.at_hand.pair = line, held
            if self._exits.is_over(line, held):
                continue
            now = monotonic()
            may_start = self._entrance.may_start(line, has_slot=has_slot, now=now)
            lot, leaves = self._exits.lot_before(held), self._reach.leaves(held)
            soon = not (may_start or has_slot) and self._room.has_soon(now, held.request.task.name)
            verdict = before_asking(held, line, now, lot=lot, may_start=may_start, soon=soon, leaves=leaves)
            if isinstance(verdict, Ask):
                goes_on = self._ask(line, held, asking, for_permit=verdict.for_permit)
                self._start_due(line)  # the answer may have taken long
            else:
                goes_on = self._exits.carry_out(line, held, verdict, now)
            if not goes_on:
                return

    def _ask(self, line: Line, first: HeldRequest, asking: Sequence[HeldRequest], *, for_permit: bool) -> bool:
        """For the first of those who ask, and for others who would ask the same next."""
        together = self._company.of(line, first, asking, monotonic()) if for_permit else [first]
        asked = Asked(together, for_permit)
        if self._sent.may_send(together):
            self._sent.send(line, asked)
            return False
        asked.answers = self._answers.ask(line, together, for_permit=for_permit)
        return self._hear(line, asked)

    def _hear(self, line: Line, asked: Asked) -> bool:
        """What the store has said of each. Returns whether the line may go on."""
        if asked.error is not None:
            self.at_hand.pair = line, asked.those[0]
            raise asked.error
        goes_on, stays = True, False
        for held, answer in zip(asked.those, asked.answers or (), strict=False):
            if stays and isinstance(answer, Decision) and not answer.allowed:
                continue  # it is asked for with the one at the head, whose turn comes first
            with self.at_hand.contains(line, held):
                verdict = self._answers.verdict(line, held, answer, for_permit=asked.for_permit, at=asked.at)
                goes_on = self._exits.carry_out(line, held, verdict, monotonic())
                stays = stays or isinstance(verdict, Stay)
        return goes_on and not stays
