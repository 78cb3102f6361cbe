"""The counts of limits, read from the store."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from ..observing import OUTCOMES, STARTED, UPSTREAM
from .tally import BOUNDS, name_of_bound

__all__ = ["Moment", "Stats", "User", "read_stats"]

_KINDS = {"t": "task", "q": "queue", "k": "key"}
_ENTRY = re.compile(r" ([a-z])(\d+)")


@dataclass(frozen=True, slots=True)
class Moment:
    """A second, or a minute.

    Attributes:
        at: its beginning, in seconds since 1970 by the store's clock.
        started: tasks and calls that got their permits.
        permits: taken by them.
        throttled: tasks that were parked, or sent back.
        ended: tasks and calls that were dropped, failed, diverted or refused, or that the store did not answer.
        upstream: what upstreams have caused, by outcome (:data:`celery_ratelimit.observing.UPSTREAM`).
    """

    at: float
    started: int = 0
    permits: int = 0
    throttled: int = 0
    ended: int = 0
    upstream: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class User:
    """A user of a limit: a ``"task"``, a ``"queue"`` or a ``"key"``; with an estimate of its permits, in which permits
    of ten minutes ago count half."""

    kind: str
    name: str
    permits: float


@dataclass(frozen=True, slots=True)
class Stats:
    """The whole fleet's decisions about one limit, also of workers that are gone.

    Attributes:
        name: the limit's name.
        at: time of the reading, in seconds since 1970 by the store's clock.
        results: all counts, by outcome (:data:`celery_ratelimit.observing.OUTCOMES`).
        permits: all permits taken.
        waits: histogram of waits until the start: each bucket's upper end in seconds (the last is ``inf``), and the
            number of waits in the bucket.
        waited: sum of the waits, in seconds.
        seconds: the last three minutes by second; seconds without decisions have no entry.
        minutes: the last day by minute.
        users: the heaviest users, the heaviest first.
    """

    name: str
    at: float
    results: Mapping[str, int]
    permits: int
    waits: tuple[tuple[float, int], ...]
    waited: float
    seconds: tuple[Moment, ...] = ()
    minutes: tuple[Moment, ...] = ()
    users: tuple[User, ...] = ()

    @property
    def started(self) -> int:
        """Tasks and calls that got their permits."""
        return sum(self.results[outcome] for outcome in STARTED)

    def used(self, seconds: int = 60) -> int:
        """Permits taken in the last so many seconds, at most 180, without the current second."""
        now = int(self.at)
        return sum(each.permits for each in self.seconds if now - seconds <= each.at < now)

    def upstream(self, minutes: int = 60) -> dict[str, int]:
        """What upstreams have caused in the last so many minutes, by outcome; without those that did not occur."""
        lately = [each.upstream for each in self.minutes if self.at - 60 * minutes <= each.at]
        sums = {outcome: sum(each.get(outcome, 0) for each in lately) for outcome in UPSTREAM}
        return {outcome: number for outcome, number in sums.items() if number}

    def waited_at_most(self, share: float) -> float:
        """A quantile of the waits, in seconds: the upper end of its bucket."""
        rest = share * sum(number for _, number in self.waits)
        for bound, number in self.waits:
            rest -= number
            if number and rest <= 0:
                return bound
        return 0.0


def read_stats(name: str, us: int, said: Sequence[Any]) -> Stats:
    """Read the reply of ``lua/read_counts.lua`` for one limit."""
    pairs = [pair.partition("=") for pair in _text(said[0]).split()]
    totals = {each: int(number) for each, _, number in pairs}
    seconds, minutes, users = said[1:] if len(said) > 1 else ((), (), ())
    bounds: tuple[float | None, ...] = (*BOUNDS, None)
    return Stats(
        name,
        us / 1e6,
        {outcome: totals.get(outcome, 0) for outcome in OUTCOMES},
        totals.get("permits", 0),
        tuple([(float("inf") if b is None else b, totals.get(name_of_bound(b), 0)) for b in bounds]),
        totals.get("waited_ms", 0) / 1e3,
        _moments(seconds, 1),
        _moments(minutes, 60),
        tuple(reversed([_user(user, permits) for user, permits in zip(users[::2], users[1::2], strict=True)])),
    )


def _moments(entries: Sequence[Any], unit: int) -> tuple[Moment, ...]:
    """Read entries: the last holds its time, each earlier one its distance to the next; default: 1."""
    moments: list[Moment] = []
    at = 0
    for entry in reversed(entries):
        text = _text(entry)
        stamp = int(text.partition(" ")[0] or 1)
        at = at - stamp if moments else stamp
        numbers = {letter: int(number) for letter, number in _ENTRY.findall(text)}
        upstream = {outcome: numbers[letter] for outcome, letter in UPSTREAM.items() if letter in numbers}
        started, permits, throttled, ended = (numbers.get(letter, 0) for letter in "spte")
        moments.append(Moment(float(at * unit), started, permits, throttled, ended, upstream))
    return tuple(reversed(moments))


def _user(user: Any, permits: Any) -> User:
    name = unquote(_text(user), errors="replace")
    return User(_KINDS.get(name[:1], ""), name[1:], float(permits))


def _text(said: Any) -> str:
    return said.decode(errors="replace") if isinstance(said, bytes) else str(said)
