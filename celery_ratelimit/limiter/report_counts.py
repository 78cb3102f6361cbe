"""Writes the counts of decisions to the store, about once a second, and reads them: one script for many limits."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ..counts.counter import Counter
from ..counts.stats import Stats, read_stats
from ..counts.tally import MOST_USERS, Part, wire_of
from ..errors import StoreUnavailable
from ..limits.decision import Decision
from ..store.keys import count_keys
from .limit_request import LimitRequest
from .operation import Operation, RunScript, batches, run_all
from .script_calls import call_of
from .script_operations import Operations
from .shadow import tell_arrivals

if TYPE_CHECKING:
    from .async_store import AsyncStoreRunner
    from .sync_store import StoreRunner

__all__ = ["AsyncDecisionCounter", "DecisionCounter", "ask_counts", "note", "note_lost", "tell_counts"]

logger: logging.Logger = logging.getLogger("celery_ratelimit")

#: Limits that one script call writes, reads, or reads the totals of: a few milliseconds.
_TOLD, _ASKED, _TOTALS = 20, 4, 100
#: Most minutes of each limit, where many limits are read at once.
MOST_MINUTES = 60
_USERS = 400
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


class _CountReporter:
    """Counts decisions, and says when counts are to be written. Counts that the store refuses are dropped.

    Attributes:
        counter: the counts.
    """

    def __init__(self, core: Operations, later: Callable[[float], None]) -> None:
        self._core = core
        self.counter: Counter = Counter(later)
        self._refused_until, self._said = 0.0, False

    def _report(self) -> Operation[None]:
        """Write the counts, and the arrivals at limits in shadow. Raises nothing but a cancellation."""
        parts = self.counter.take()
        if not (parts or self.counter.arrivals or self._core.shadows.pending) or self._is_refused:
            return
        try:
            yield from tell_arrivals(self._core, self.counter.arrivals)
            yield from tell_counts(self._core, parts)
        except Exception as error:
            self._note(error)

    @property
    def _is_refused(self) -> bool:
        return time.monotonic() < self._refused_until

    def _go_on(self) -> None:
        """Schedule another report, if the store has arrivals to simulate."""
        if self._core.shadows.pending and not self._is_refused:
            self.counter.again()

    def _note(self, error: Exception) -> None:
        """Log an error, a refusal once: it must not disturb a task."""
        if isinstance(error, StoreUnavailable):
            logger.debug("What was decided within a second is not counted: %r", error)
            return
        self._refused_until = time.monotonic() + _QUIET
        if not self._said:
            self._said = True
            logger.warning("The store refuses to count what is decided, and figures are missing: %s", error)


class DecisionCounter(_CountReporter):
    """Counts the decisions of one process, and writes the counts to the store.

    Args:
        asker: calls the store.
        later: calls a function after so many seconds; default: on a thread of its own.
        is_lost: whether the store is known to be lost: the counts wait.
        times: returns the seconds from one report to the next.
    """

    def __init__(
        self,
        asker: StoreRunner,
        later: Callable[[float, Callable[[], None]], object] | None = None,
        is_lost: Callable[[], bool] = lambda: False,
        times: Callable[[], float] = lambda: 1.0,
    ) -> None:
        self._asker, self._is_lost = asker, is_lost
        self._timer: object = None

        def in_a_while(seconds: float) -> None:
            self._timer = (later or _on_a_thread)(seconds * times(), self.send)

        super().__init__(asker.core, in_a_while)

    def send(self) -> None:
        """Write the counts. Raises nothing."""
        if self._is_lost():
            self.counter.wait()
        else:
            self._asker.drive(self._report())
            self._go_on()

    def close(self) -> None:
        """Write the counts, and end the thread."""
        if isinstance(self._timer, threading.Timer):
            self._timer.cancel()
            self._timer.join()
        self._asker.drive(self._report())


def _on_a_thread(seconds: float, call: Callable[[], None]) -> threading.Timer:
    timer = threading.Timer(seconds, call)
    timer.daemon = True
    timer.name = "celery_ratelimit-counts"
    timer.start()
    return timer


class AsyncDecisionCounter(_CountReporter):
    """Counts the decisions in one event loop, and writes the counts to the store."""

    def __init__(self, asker: AsyncStoreRunner) -> None:
        super().__init__(asker.core, self._later)
        self._asker = asker
        self._timer: asyncio.TimerHandle | None = None

    def _later(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, lambda: self._asker.start(self.send()))

    async def send(self) -> None:
        """Write the counts. Raises nothing but a cancellation."""
        await self._asker.drive(self._report())
        self._go_on()

    async def aclose(self) -> None:
        """Write the counts, for the last time unless more is counted."""
        if self._timer is not None:
            self._timer.cancel()
        await self._asker.drive(self._report())


def count_upstream(core: Operations, name: str, outcome: str) -> Operation[None]:
    """Count at once what an upstream has caused: a limit's refused call, a header's pause, an opened breaker."""
    part = Part()
    part.add(outcome)
    yield from tell_counts(core, [(name, part)])


def tell_counts(core: Operations, parts: Sequence[tuple[str, Part]]) -> Operation[None]:
    """Add counts to the store's."""
    for some in batches(core.is_cluster, parts, _TOLD, _USERS, lambda each: min(len(each[1].users), MOST_USERS)):
        keys = [key for name, _ in some for key in count_keys(core.calls.prefix, name)]
        values = [MOST_USERS, len(some), *[value for _, part in some for value in wire_of(part)]]
        yield from run_all([RunScript(core.scripts.add_counts, call_of(keys, values))])


def ask_counts(
    core: Operations, names: Sequence[str], *, totals: bool = False, minutes: int | None = None
) -> Operation[list[Stats]]:
    """Read the stats of limits, in the order of the names; ``totals``: without seconds, minutes and users;
    ``minutes``: only the last so many minutes that have decisions.
    """
    which = min(minutes, MOST_MINUTES) if minutes is not None else 0 if totals else -1
    parts, asked = batches(core.is_cluster, names, _ASKED if which < 0 else _TOTALS), []
    for some in parts:
        keys = [key for name in some for key in count_keys(core.calls.prefix, name)]
        asked.append(RunScript(core.scripts.read_counts, call_of(keys, [which])))
    answer: list[Stats] = []
    for some, (us, *said) in zip(parts, (yield from run_all(asked)), strict=True):
        answer += [read_stats(name, int(us), each) for name, each in zip(some, said, strict=True)]
    return answer
