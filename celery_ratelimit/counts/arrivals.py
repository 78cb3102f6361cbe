"""Requests that limits in shadow have not held up: when each came, until the store is told. No I/O, never too many."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..observing import Asked

__all__ = ["Arrival", "Arrivals"]

#: Of a limit within a second: more requests of one key and cost are said to have come together.
_MOST = 2000
#: Limits, and requests that are said apart: what is beyond is not told of.
_LIMITS, _APART = 1000, 20_000


@dataclass(slots=True)
class Arrival:
    """Requests that came at one time. ``number`` 0: nobody came, and what an earlier one cost is corrected.

    Attributes:
        at: when, by this process's clock, in seconds.
        key: of the bucket.
        cost: of each, in permits.
        number: how many.
    """

    at: float
    key: str
    cost: int
    number: int = 1


class Arrivals:
    """What came since it was taken last, by limit, in its order. May be shared by threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._of: dict[str, list[Arrival]] = {}

    def __len__(self) -> int:
        return len(self._of)

    def came(self, asked: Sequence[Asked]) -> None:
        """A request that asks this."""
        self._note(asked, 1)

    def corrected(self, asked: Sequence[Asked]) -> None:
        """A request that came earlier cost so much more, or less, than was said."""
        self._note(asked, 0)

    def _note(self, asked: Sequence[Asked], number: int) -> None:
        at = self._clock()
        with self._lock:
            for name, key, cost in asked:
                if name not in self._of and len(self._of) >= _LIMITS:
                    continue
                those = self._of.setdefault(name, [])
                if len(those) >= _MOST and number and self._joins(those, key, cost):
                    continue
                if len(those) < _APART:
                    those.append(Arrival(at, key, cost, number))

    @staticmethod
    def _joins(those: list[Arrival], key: str, cost: int) -> bool:
        """The last one of the same, if it is near."""
        for each in itertools.islice(reversed(those), 8):
            if each.key == key and each.cost == cost and each.number:
                each.number += 1
                return True
        return False

    def take(self) -> list[tuple[str, list[Arrival]]]:
        """What there is; from now on there is nothing."""
        with self._lock:
            those, self._of = self._of, {}
        return list(those.items())

    def now(self) -> float:
        """The time by the clock that the arrivals are noted with, in seconds."""
        return self._clock()
