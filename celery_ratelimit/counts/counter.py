"""Counts the outcomes of requests, and schedules their report about once a second while there are any."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from ..forks import begin_anew_after_fork
from ..observing import STARTED, Asked, Observation
from .shadow_arrivals import Arrivals
from .tally import Part, Tally

__all__ = ["PAUSE", "Counter"]

#: Seconds for which a process counts before it reports to the store.
PAUSE = 1.0
#: Calls granted at once that are kept until they are added up: bounds the memory.
_NOTED = 1000


class Counter:
    """Counts for one process; an :class:`~celery_ratelimit.observing.Observer`.

    A report without a reply is not repeated: the store may have counted it, and must not count it twice.

    Args:
        later: schedules the report of :meth:`take` in so many seconds.

    Attributes:
        arrivals: at limits that are in shadow.
    """

    def __init__(self, later: Callable[[float], None]) -> None:
        self._later = later
        self.begin_anew()
        begin_anew_after_fork(self)

    def begin_anew(self) -> None:
        """Start empty after a fork: earlier counts are the parent process's."""
        self._pid = os.getpid()
        self._tally = Tally()
        self.arrivals: Arrivals = Arrivals()
        self._is_due = False

    def __call__(self, seen: Observation, /) -> None:
        if seen.outcome in STARTED:
            self.started(seen.outcome, seen.asked, seen.throttled_for, (f"t{seen.task}", f"q{seen.queue}"))
        elif seen.outcome not in ("waiting", "shadow"):
            names = [name for name, _, _ in seen.asked] if seen.limit is None else [seen.limit]
            self.happened(seen.outcome, names)
        if seen.shadow:
            self.shadowed(seen.shadow, (f"t{seen.task}", f"q{seen.queue}"))

    def at_once(self, asked: Asked) -> None:
        """Count a call that got its permits of one limit at once: the ordinary case, at a quarter of the cost."""
        noted = self._tally.at_once
        noted.append(asked)
        if len(noted) >= _NOTED:
            self._add_up()
        if not self._is_due:
            self.wait()

    def started(self, outcome: str, asked: Sequence[Asked], waited: float, users: Sequence[str] = ()) -> None:
        """See :meth:`Tally.started`."""
        self._tally.started(outcome, asked, waited, users)
        if not self._is_due:
            self.wait()

    def shadowed(self, asked: Sequence[Asked], users: Sequence[str] = ()) -> None:
        """See :meth:`Tally.shadowed`."""
        self._tally.shadowed(asked, users)
        self.arrivals.came(asked)
        if not self._is_due:
            self.wait()

    def corrected(self, asked: Sequence[Asked]) -> None:
        """See :meth:`Arrivals.corrected`."""
        self.arrivals.corrected(asked)
        if not self._is_due:
            self.wait()

    def happened(self, outcome: str, names: Sequence[str]) -> None:
        """See :meth:`Tally.happened`."""
        self._tally.happened(outcome, names)
        if not self._is_due:
            self.wait()

    def take(self) -> list[tuple[str, Part]]:
        """Remove and return the counts to report now."""
        self._is_due = False
        return self._tally.take()

    def wait(self) -> None:
        """Schedule the report again: it is not possible now."""
        self._is_due = True
        self._later(PAUSE)

    def again(self) -> None:
        """Schedule another report, although nothing may be counted meanwhile."""
        if not self._is_due:
            self.wait()

    def _add_up(self) -> None:
        if self._pid == os.getpid():
            self._tally.add_up()
        else:  # a fork that ran no fork hooks of Python
            self.begin_anew()
