"""Adds up the decisions of one process until they are reported to the store. No I/O; bounded memory."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence

from ..observing import STARTED, UPSTREAM, Asked
from ..store.keys import escape

__all__ = ["BOUNDS", "MOST_USERS", "Part", "Tally", "name_of_bound"]

#: The upper ends of the buckets of waits, in seconds; one more bucket has no end.
BOUNDS = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 3600.0)
#: Most users of a limit (tasks, queues and keys together), here and in the store.
MOST_USERS = 100
#: Users of a limit, and limits, of a process within a second. Beyond, a user or a limit is not counted.
_USERS, _LIMITS = 1000, 1000

#: The outcomes that a second's and a minute's entry counts as throttled, and as ended.
_THROTTLED, _ENDED = ("parked", "returned"), ("dropped", "failed", "diverted", "refused", "store_error")


def name_of_bound(bound: float | None) -> str:
    """A bucket's name in the store; ``None``: the bucket without end."""
    return "winf" if bound is None else f"w{round(bound * 1000)}"


_BUCKETS = tuple(map(name_of_bound, (*BOUNDS, None)))


class Part:
    """The decisions about one limit."""

    __slots__ = ("numbers", "users")

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        self.users: dict[str, int] = {}

    def add(self, name: str, number: int = 1) -> None:
        self.numbers[name] = self.numbers.get(name, 0) + number

    def use(self, user: str, permits: int) -> None:
        if user in self.users or len(self.users) < _USERS:
            self.users[user] = self.users.get(user, 0) + permits

    def totals(self) -> str:
        """The totals, as ``lua/add_counts.lua`` reads them."""
        return " ".join(f"{name}={number}" for name, number in self.numbers.items())

    def series(self) -> str:
        """The short form, for a second and a minute."""
        numbers = {
            "s": self._sum(STARTED),
            "p": self.numbers.get("permits", 0),
            "t": self._sum(_THROTTLED),
            "e": self._sum(_ENDED),
            **{letter: self.numbers.get(outcome, 0) for outcome, letter in UPSTREAM.items()},
        }
        return "".join(f" {letter}{number}" for letter, number in numbers.items() if number)

    def most(self) -> list[tuple[str, int]]:
        """The heaviest users."""
        return sorted(self.users.items(), key=lambda user: -user[1])[:MOST_USERS]

    def _sum(self, outcomes: Iterable[str]) -> int:
        return sum(self.numbers.get(outcome, 0) for outcome in outcomes)


class Tally:
    """The decisions since the last :meth:`take`, by limit. Threads may share it.

    Attributes:
        at_once: calls that were granted at once; any thread appends to it without the lock. This is the ordinary case,
            on the path of every call, so these calls are added up later, many together.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._parts: dict[str, Part] = {}
        self.at_once: list[Asked] = []

    def __len__(self) -> int:
        return len(self._parts)

    def started(self, outcome: str, asked: Sequence[Asked], waited: float, users: Sequence[str] = ()) -> None:
        """Count a task or call that got its permits of the limits in ``asked``, ``waited`` seconds after a refusal.

        ``users``: each a letter for the kind (``t`` a task, ``q`` a queue), and the name.
        """
        bucket, milliseconds = _BUCKETS[bisect_left(BOUNDS, waited)], round(waited * 1000)
        with self._lock:
            for name, key, cost in asked:
                part = self._part(name)
                if part is None:
                    continue
                part.add(outcome)
                part.add("permits", cost)
                part.add(bucket)
                if milliseconds:
                    part.add("waited_ms", milliseconds)
                for user in users:
                    part.use(user, cost)
                if key:
                    part.use(f"k{key}", cost)

    def shadowed(self, asked: Sequence[Asked], users: Sequence[str] = ()) -> None:
        """Count a task or call that passed limits in shadow, without their permits."""
        with self._lock:
            for name, key, cost in asked:
                part = self._part(name)
                if part is not None:
                    part.add("shadow")
                    for user in (*users, *([f"k{key}"] if key else ())):
                        part.use(user, cost)

    def happened(self, outcome: str, names: Iterable[str]) -> None:
        """Count another outcome, for the limits of these names."""
        with self._lock:
            for name in names:
                part = self._part(name)
                if part is not None:
                    part.add(outcome)

    def add_up(self) -> None:
        """Add up the calls that were granted at once."""
        with self._lock:
            self._add_up()

    def take(self) -> list[tuple[str, Part]]:
        """Remove and return the counts."""
        with self._lock:
            self._add_up()
            parts, self._parts = self._parts, {}
        return list(parts.items())

    def _add_up(self) -> None:
        noted = self.at_once[:]
        del self.at_once[: len(noted)]  # other threads append meanwhile
        for (name, key, cost), times in Counter(noted).items():
            part = self._part(name)
            if part is None:
                continue
            part.add("acquired", times)
            part.add("permits", cost * times)
            part.add(_BUCKETS[0], times)
            if key:
                part.use(f"k{key}", cost * times)

    def _part(self, name: str) -> Part | None:
        part = self._parts.get(name)
        if part is None and len(self._parts) < _LIMITS:
            part = self._parts[name] = Part()
        return part


def wire_of(part: Part) -> list[str | int]:
    """The arguments of ``lua/add_counts.lua`` for one limit."""
    users = part.most()
    return [part.totals(), part.series(), len(users), *[value for name, n in users for value in (escape(name), n)]]
