"""Writes the counts of decisions to the store, about once a second, and reads them: one script for many limits.

On a cluster, one script for each limit.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

from ..counts.counter import Counter
from ..counts.figures import Stats, read_stats
from ..counts.tally import MOST_USERS, Part, wire_of
from ..errors import StoreUnavailable
from ..limits.decision import Decision
from ..store.keys import count_keys
from .limit_request import LimitRequest
from .operation import Operation, RunScript, run_all
from .script_calls import call_of
from .script_operations import Operations
from .shadow import tell_arrivals

if TYPE_CHECKING:
    from .async_store import AsyncStoreRunner
    from .sync_store import StoreRunner

__all__ = [
    "AsyncUsageReporter",
    "UsageReporter",
    "ask_counts",
    "ask_used",
    "note",
    "note_lost",
    "tell_counts",
]

_T = TypeVar("_T")
logger = logging.getLogger("celery_ratelimit")

#: Limits that one script call writes, reads, or reads the totals of: a few milliseconds.
_TOLD, _ASKED, _TOTALS = 20, 4, 100
#: Most minutes of each limit, where many limits are read at once.
MOST_MINUTES = 60
_USERS = 400
#: Entries of recent use that one script reads; and seconds that are kept singly, see ``lua/count.lua``.
_ENTRIES, _SECONDS = 1500, 180
#: Seconds for which nothing is counted after the store has refused it.
_QUIET = 60.0
#: Waits below this many seconds count as none.
_AT_ONCE = 0.01


def note(counter: Counter, demands: Sequence[LimitRequest], decision: Decision, waited: float) -> None:
    """Count a decision of a limiter."""
    if decision.allowed and waited < _AT_ONCE:
        for demand in demands:
            counter.at_once((demand.name, demand.key, demand.cost))
    elif decision.allowed:
        asked = [(demand.name, demand.key, demand.cost) for demand in demands]
        counter.started("waited", asked, waited)
    else:
        counter.happened("refused", [decision.limited_by] if decision.limited_by else [each.name for each in demands])


def note_lost(counter: Counter, demands: Sequence[LimitRequest]) -> None:
    """Count a call that the store did not answer."""
    counter.happened("store_error", [demand.name for demand in demands])


class _Refusals:
    """Drops counts that the store refuses, and logs that once: it must not disturb a task."""

    def __init__(self) -> None:
        self._until = 0.0
        self._said = False

    def __bool__(self) -> bool:
        return time.monotonic() < self._until

    def note(self, error: Exception) -> None:
        if isinstance(error, StoreUnavailable):
            logger.debug("What was decided within a second is not counted: %r", error)
            return
        self._until = time.monotonic() + _QUIET
        if not self._said:
            self._said = True
            logger.warning("The store refuses to count what is decided, and figures are missing: %s", error)


class UsageReporter:
    """Counts the decisions of one process, and writes the counts to the store.

    Args:
        asker: calls the store.
        later: calls a function after so many seconds; default: on a thread of its own.
        is_lost: whether the store is known to be lost: the counts wait.
        times: returns the seconds from one report to the next.

    Attributes:
        counter: the counts.
    """

    def __init__(
        self,
        asker: StoreRunner,
        later: Callable[[float, Callable[[], None]], object] | None = None,
        is_lost: Callable[[], bool] = lambda: False,
        times: Callable[[], float] = lambda: 1.0,
    ) -> None:
        self._asker, self._is_lost = asker, is_lost
        call_after = later or _on_a_thread

        self._timer: object = None

        def in_a_while(seconds: float) -> None:
            self._timer = call_after(seconds * times(), self.send)

        self.counter = Counter(in_a_while)
        self._refusals = _Refusals()

    def send(self) -> None:
        """Write the counts. Raises nothing."""
        if self._is_lost():
            self.counter.wait()
            return
        self._send()
        if self._asker.shadows.pending and not self._refusals:
            self.counter.again()

    def close(self) -> None:
        """Write the counts, and end the thread."""
        if isinstance(self._timer, threading.Timer):
            self._timer.cancel()
            self._timer.join()
        self._send()

    def _send(self) -> None:
        parts = self.counter.take()
        if not (parts or self.counter.arrivals or self._asker.shadows.pending) or self._refusals:
            return
        try:
            self._asker.drive(_tell_all(self._asker.core, self.counter, parts))
        except Exception as error:
            self._refusals.note(error)


def _on_a_thread(seconds: float, call: Callable[[], None]) -> threading.Timer:
    timer = threading.Timer(seconds, call)
    timer.daemon = True
    timer.name = "celery_ratelimit-counts"
    timer.start()
    return timer


class AsyncUsageReporter:
    """Counts the decisions in one event loop, and writes the counts to the store.

    Args:
        asker: calls the store.

    Attributes:
        counter: the counts.
    """

    def __init__(self, asker: AsyncStoreRunner) -> None:
        self._asker = asker
        self.counter = Counter(self._later)
        self._refusals = _Refusals()
        self._timer: asyncio.TimerHandle | None = None

    def _later(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(seconds, lambda: self._asker.start(self.send()))

    async def send(self) -> None:
        """Write the counts. Raises nothing but a cancellation."""
        await self._send()
        if self._asker.core.shadows.pending and not self._refusals:
            self.counter.again()

    async def aclose(self) -> None:
        """Write the counts, for the last time unless more is counted."""
        if self._timer is not None:
            self._timer.cancel()
        await self._send()

    async def _send(self) -> None:
        parts = self.counter.take()
        if not (parts or self.counter.arrivals or self._asker.core.shadows.pending) or self._refusals:
            return
        try:
            await self._asker.drive(_tell_all(self._asker.core, self.counter, parts))
        except Exception as error:
            self._refusals.note(error)


def tell_counts(core: Operations, parts: Sequence[tuple[str, Part]]) -> Operation[None]:
    """Add counts to the store's."""
    for some in _told(core, parts):
        keys = [key for name, _ in some for key in count_keys(core.calls.prefix, name)]
        values = [MOST_USERS, len(some), *[value for _, part in some for value in wire_of(part)]]
        yield from run_all([RunScript(core.scripts.count, call_of(keys, values))])


def _tell_all(core: Operations, counter: Counter, parts: Sequence[tuple[str, Part]]) -> Operation[None]:
    """Write counts, and arrivals at limits in shadow."""
    yield from tell_arrivals(core, counter.arrivals)
    yield from tell_counts(core, parts)


def ask_counts(
    core: Operations, names: Sequence[str], *, totals: bool = False, minutes: int | None = None
) -> Operation[list[Stats]]:
    """Read the stats of limits, in the order of the names; ``totals``: without seconds, minutes and users;
    ``minutes``: only the last so many minutes that have decisions.
    """
    which = min(minutes, MOST_MINUTES) if minutes is not None else 0 if totals else -1
    parts, asked = _together(core, names, _ASKED if which < 0 else _TOTALS), []
    for some in parts:
        keys = [key for name in some for key in count_keys(core.calls.prefix, name)]
        asked.append(RunScript(core.scripts.counts, call_of(keys, [which])))
    answer: list[Stats] = []
    for some, (us, *said) in zip(parts, (yield from run_all(asked)), strict=True):
        answer += [read_stats(name, int(us), each) for name, each in zip(some, said, strict=True)]
    return answer


def ask_used(core: Operations, asked: Sequence[tuple[str, float]]) -> Operation[list[int]]:
    """Read the permits taken of each limit within so many seconds, up to a day; see ``lua/used.lua``."""
    parts: list[list[tuple[str, float]]] = []
    size = 0
    for name, within in asked:
        entries = int(within) if within <= _SECONDS else int(within / 60)
        if not parts or core.is_cluster or size + entries > _ENTRIES:
            parts.append([])
            size = 0
        parts[-1].append((name, within))
        size += entries
    replies = yield from run_all([_used(core, part) for part in parts])
    return [int(permits) for reply in replies for permits in reply]


def _used(core: Operations, asked: Sequence[tuple[str, float]]) -> RunScript:
    keys, values = [], list[int | str]()
    for name, within in asked:
        _, seconds, minutes, _ = count_keys(core.calls.prefix, name)
        keys.append(seconds if within <= _SECONDS else minutes)
        values += [1 if within <= _SECONDS else 60, round(within)]
    return RunScript(core.scripts.used, call_of(keys, values))


def _told(core: Operations, parts: Sequence[tuple[str, Part]]) -> Iterator[Sequence[tuple[str, Part]]]:
    """Group counts by script call, with a bounded number of limits and users."""
    for some in _together(core, parts, _TOLD):
        first, users = 0, 0
        for at, (_, part) in enumerate(some):
            number = min(len(part.users), MOST_USERS)
            if users and users + number > _USERS:
                yield some[first:at]
                first, users = at, 0
            users += number
        yield some[first:]


def _together(core: Operations, each: Sequence[_T], most: int) -> list[Sequence[_T]]:
    most = 1 if core.is_cluster else most
    return [each[at : at + most] for at in range(0, len(each), most)]
