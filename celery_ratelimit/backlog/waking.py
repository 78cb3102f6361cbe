"""Lots that are due sooner than was foreseen: a limit is another one than it was, or a queue is consumed again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from .._celery import Worker
from ..app.plan import AppLimits
from ..limiter.demand import Demand
from ..limiter.outage import Outage
from .backlog import Backlog

__all__ = ["NEXT", "TURN", "Waking"]

#: Seconds after which what is not done with the lots waits for the next turn of the worker's loop: the last step may
#: take thirty milliseconds more, as it publishes fifty tasks.
TURN = 0.01
#: Seconds until that next turn: a timer without any delay goes off in the same one.
NEXT = 0.001
#: The same in an outage.
IN_AN_OUTAGE = 0.2


class Waking:
    """Tells lots that they are due sooner, in steps: one for one limit after the other, turn by turn.

    Args:
        worker: the worker.
        parking: the lots.
        limits: whose lots.
        outage: while it lasts nobody asks the store.
    """

    def __init__(self, worker: Worker, parking: Backlog, limits: AppLimits, outage: Outage) -> None:
        self._worker, self._parking, self._limits, self._outage = worker, parking, limits, outage
        self._to_wake: dict[str, int] = {}
        self._woken_at: dict[str, int] = {}
        self._to_recall: dict[str, tuple[str | None, int]] = {}
        self._is_recalled = self._is_new = False
        self._known = 0  # limits that were woken and recalled when this worker came to have them
        self._cancel: Callable[[], None] | None = None

    def begin(self) -> None:
        """Wake and recall limits that this worker has come to have: other workers' code may have other limits."""
        if len(self._limits) > self._known:
            self._known = len(self._limits)
            self._is_new = True
            self.recall()

    def wake(self, names: Iterable[str]) -> None:
        """What is stored for these limits has changed: their lots may be due sooner than was foreseen."""
        for name in names:
            if name in self._limits:
                self._wake(name, self._woken_at.get(name, 0))

    def has_another_code(self, name: str) -> None:
        """The worker that looked at lots of this limit last had another limit in its code."""
        self._wake(name, -1)

    def recall(self) -> None:
        """Queues are consumed again: tasks that are aside for them are due."""
        self._is_recalled = True
        self._go_on()

    def _wake(self, name: str, since: int) -> None:
        if self._parking.can_park:
            self._to_wake[name] = min(since, self._to_wake.get(name, since))
            self._go_on()

    def _go_on(self) -> None:
        if self._cancel is None:
            self._cancel = self._worker.timers.call_after(NEXT, self._in_steps)

    def _in_steps(self) -> None:
        """One step for one limit after the other, until the turn is over."""
        self._cancel = None
        self._outage.ask(lambda: self._some_steps(time.monotonic() + TURN), None)
        if (self._to_wake or self._to_recall or self._is_recalled) and self._cancel is None:
            self._cancel = self._worker.timers.call_after(IN_AN_OUTAGE if self._outage else NEXT, self._in_steps)

    def _some_steps(self, until: float) -> None:
        """What is to be done is taken out before the store is asked, and put back if there is no answer.

        So a change or a recall that comes meanwhile is kept: greenlets switch, and Celery's loop may be nested.
        """
        if self._is_recalled:
            self._find_names()
        while self._to_wake and not self._outage and time.monotonic() < until:
            name, since = next(iter(self._to_wake.items()))
            del self._to_wake[name]
            try:
                now, more = self._parking.wake(Demand(self._limits[name], name), since)
            except BaseException:
                self._wake(name, since)
                raise
            if more:
                self._to_wake[name] = -1  # it has changed, and not all lots have been told
            else:
                self._woken_at[name] = now
        while self._to_recall and not self._outage and time.monotonic() < until:
            name, (after, offset) = next(iter(self._to_recall.items()))
            del self._to_recall[name]
            try:
                after_this, offset_then = self._parking.register.recall(name, after, offset)
            except BaseException:
                self._to_recall.setdefault(name, (after, offset))
                raise
            if after_this is not None:
                self._to_recall.setdefault(name, (after_this, offset_then))

    def _find_names(self) -> None:
        """The limits to recall, and to wake if some are new: those for which tasks are parked."""
        is_new, self._is_recalled, self._is_new = self._is_new, False, False
        try:
            names = self._parking.contents.occupied(self._limits.names) if self._parking.can_park else ()
        except BaseException:
            self._is_recalled, self._is_new = True, self._is_new or is_new
            raise
        self._to_recall = dict.fromkeys(names, (None, 0))
        for name in names if is_new else ():
            self._wake(name, 0)

    def close(self) -> None:
        if self._cancel is not None:
            self._cancel()
            self._cancel = None
        self._to_wake.clear()
        self._to_recall.clear()
        self._is_recalled, self._known = False, 0
