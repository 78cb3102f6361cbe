"""Arrivals of requests at limits in shadow, kept until they are reported to the store. No I/O; bounded memory."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..observing import Asked

__all__ = ["Arrival", "Arrivals"]

#: Arrivals of a limit within a second; beyond, requests of one key and cost are joined.
_MOST = 2000
#: Limits, and separate arrivals; beyond, arrivals are not reported.
_LIMITS, _APART = 1000, 20_000


@dataclass(slots=True)
class Arrival:
    """Requests that arrived at one time. ``number`` 0: a correction of an earlier request's cost.

    Attributes:
        at: time of arrival by this process's clock, in seconds.
        key: of the bucket.
        cost: of each request, in permits.
        number: of requests.
    """

    at: float
    key: str
    cost: int
    number: int = 1


class Arrivals:
    """Arrivals since the last :meth:`take`, by limit, in their order. Threads may share it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._of: dict[str, list[Arrival]] = {}

    def __len__(self) -> int:
        return len(self._of)

    def came(self, asked: Sequence[Asked]) -> None:
        """Note a request."""
        self._note(asked, 1)

    def corrected(self, asked: Sequence[Asked]) -> None:
        """Note that an earlier request cost so many permits more, or less."""
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
        """Whether a request joins the last arrival of the same key and cost."""
        for each in itertools.islice(reversed(those), 8):
            if each.key == key and each.cost == cost and each.number:
                each.number += 1
                return True
        return False

    def take(self) -> list[tuple[str, list[Arrival]]]:
        """Remove and return all arrivals."""
        with self._lock:
            those, self._of = self._of, {}
        return list(those.items())

    def now(self) -> float:
        """The time of the arrivals' clock, in seconds."""
        return self._clock()
