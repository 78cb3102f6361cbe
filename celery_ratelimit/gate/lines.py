"""The lines of one worker's gate: by what they ask, and in the order in which they have their turns."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable, Iterator

from ..app.plan import Buckets
from .held import HeldRequest
from .line import Line

__all__ = ["Lines"]


class Lines:
    """All lines.

    Attributes:
        wanting: lines that wait for a process, in the order of their turns to ask.
    """

    def __init__(self) -> None:
        self.wanting: dict[Buckets, None] = {}
        self._by_key: dict[Buckets, Line] = {}
        self._by_bucket: dict[tuple[str, str], dict[Buckets, None]] = {}
        self._turns: list[tuple[float, int, Line]] = []
        self._numbers = itertools.count()

    def __iter__(self) -> Iterator[Line]:
        return iter(list(self._by_key.values()))

    def get(self, key: Buckets) -> Line | None:
        return self._by_key.get(key)

    def of(self, key: Buckets) -> Line:
        """The line of those who ask these buckets; a new one if there is none."""
        line = self._by_key.get(key)
        if line is None:
            line = self._by_key[key] = Line(key, next(self._numbers))
            for bucket in key:
                self._by_bucket.setdefault(bucket, {})[key] = None
        return line

    def asking(self, buckets: Iterable[tuple[str, str]]) -> list[Line]:
        """The lines that ask any of these buckets."""
        keys = dict.fromkeys(itertools.chain.from_iterable(self._by_bucket.get(bucket, ()) for bucket in buckets))
        return [self._by_key[key] for key in keys]

    def end(self, line: Line) -> None:
        """Nobody is in it."""
        if line.cancel is not None:
            line.cancel()
        line.turn = 0.0
        self.wanting.pop(line.key, None)
        del self._by_key[line.key]
        for bucket in line.key:
            del self._by_bucket[bucket][line.key]
            if not self._by_bucket[bucket]:
                del self._by_bucket[bucket]

    def wants(self, line: Line) -> None:
        """It waits for a process, behind the others that do; or not any more."""
        if line.wants:
            self.wanting[line.key] = None
        else:
            self.wanting.pop(line.key, None)

    def note_turn(self, line: Line, turn: float) -> None:
        """Somebody of it has to wait for that time; 0.0: nobody has."""
        if turn and turn != line.turn:
            heapq.heappush(self._turns, (turn, next(self._numbers), line))
        line.turn = turn
        if len(self._turns) > 100 + 4 * len(self._by_key):  # of those that were told other times since
            self._turns = [(each.turn, next(self._numbers), each) for each in self._by_key.values() if each.turn]
            heapq.heapify(self._turns)

    def next_turn(self, now: float) -> float:
        """When somebody has a turn that is to come; infinity: nobody waits for one."""
        while self._turns and (self._turns[0][0] != self._turns[0][2].turn or self._turns[0][0] <= now):
            heapq.heappop(self._turns)
        return self._turns[0][0] if self._turns else float("inf")

    def clear(self) -> list[HeldRequest]:
        """The connection is lost, or the worker stops: everybody is gone. Returns who was here."""
        everybody: list[HeldRequest] = []
        for line in self._by_key.values():
            if line.cancel is not None:
                line.cancel()
            everybody += line.clear()
        self._by_key.clear()
        self._by_bucket.clear()
        self._turns.clear()
        self.wanting.clear()
        return everybody
