"""Who asks together: for the first of a line, and for those who would ask the same next."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from .._celery import Worker
from ..parking.publisher import LEAD
from .answers import MOST_TOGETHER, Answers
from .at_hand import AtHand
from .exits import Exits
from .held import HeldRequest
from .line import Line
from .room import Room

__all__ = ["Company"]


class Company:
    """Finds it, in one worker.

    Args:
        worker: has those that wait for the end of their countdown.
        answers: of the store.
        room: of the pool.
        exits: of those that need not ask any more.
        at_hand: the request that is looked at.
    """

    def __init__(self, worker: Worker, answers: Answers, room: Room, exits: Exits, at_hand: AtHand) -> None:
        self._worker, self._answers, self._room, self._exits, self._at_hand = worker, answers, room, exits, at_hand

    def of(self, line: Line, first: HeldRequest, asking: Sequence[HeldRequest], now: float) -> list[HeldRequest]:
        """The first, and who asks for permits with it.

        Who has a slot takes it from nobody; others take turns with other workers, so they are as many as have to be.
        For places, which are held from then on, as many as there are processes. Not for who has yet to learn whether it
        may run.
        """
        if first.has_slot:
            self._call_back(line, first, now)
        if len(asking) < 2 or (first.plan.leased and not first.stays):
            return [first]
        most = MOST_TOGETHER if first.has_slot and not first.plan.leased else self._answers.together(line, first)
        if not first.plan.leased:
            most = min(most, self._room.permits(now, first.request.task.name, line.interval))
        together = [first]
        for held in list(itertools.islice(asking, 1, most)):
            if len(together) >= most or now >= held.until or not _asks_the_same(first, held):
                break
            self._at_hand.pair = line, held
            if self._exits.is_over(line, held):
                continue
            if held.doubtful:  # the store did not say
                break
            together.append(held)
        self._at_hand.pair = line, first
        return together

    def _call_back(self, line: Line, first: HeldRequest, now: float) -> None:
        """Where the store is far away: those whose turn comes soon need not wait for the end of their countdown."""
        reach = self._answers.reach(line, first)
        if reach > LEAD and self._room.coming.next_comer(now) <= now + reach:
            self._worker.timers.recall(lambda request: self._room.coming.has_turn(request.id, now + reach))


def _asks_the_same(one: HeldRequest, other: HeldRequest) -> bool:
    return one.plan is other.plan and one.demands == other.demands
