"""Counts what becomes of requests, and has it sent about once a second while there is something to tell."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from ..observing import STARTED, Asked, Observation
from .tally import Part, Tally

__all__ = ["PAUSE", "Counter"]

#: Seconds for which a process adds up before it tells the store.
PAUSE = 1.0


class Counter:
    """Counts for one process; an :class:`~celery_ratelimit.observing.Observer`.

    What was sent and not answered is not sent again: it may have been counted, and is never counted twice.

    Args:
        later: has :meth:`send` called, or what is to be done with :meth:`take`, in so many seconds.
    """

    def __init__(self, later: Callable[[float], None]) -> None:
        self._later = later
        self._tally = Tally()
        self._is_due = False
        self._pid = os.getpid()

    def __call__(self, seen: Observation, /) -> None:
        if seen.outcome in STARTED:
            self.started(seen.outcome, seen.asked, seen.throttled_for, (f"t{seen.task}", f"q{seen.queue}"))
        elif seen.outcome != "waiting":
            names = [name for name, _, _ in seen.asked] if seen.limit is None else [seen.limit]
            self.happened(seen.outcome, names)

    def started(self, outcome: str, asked: Sequence[Asked], waited: float, users: Sequence[str] = ()) -> None:
        """See :meth:`Tally.started`."""
        self._be_due()
        self._tally.started(outcome, asked, waited, users)

    def happened(self, outcome: str, names: Sequence[str]) -> None:
        """See :meth:`Tally.happened`."""
        self._be_due()
        self._tally.happened(outcome, names)

    def take(self) -> list[tuple[str, Part]]:
        """What is to be sent now."""
        self._is_due = False
        return self._tally.take()

    def wait(self) -> None:
        """It cannot be sent now: in a while."""
        self._is_due = True
        self._later(PAUSE)

    def _be_due(self) -> None:
        if self._is_due and self._pid == os.getpid():
            return
        if self._pid != os.getpid():  # what was counted before a fork is the parent's
            self._pid, self._tally = os.getpid(), Tally()
        self.wait()
