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
        self._changed: set[str] = set()
        self._to_recall: dict[str, tuple[str | None, int]] = {}
        self._is_new = False
        self._cancel: Callable[[], None] | None = None

    def begin(self) -> None:
        """This worker's code may have other limits than the workers that were here before."""
        self._is_new = True
        self._go_on()

    def wake(self, names: Iterable[str]) -> None:
        """What is stored for these limits has changed: their lots may be due sooner than was foreseen."""
        names = [name for name in names if name in self._limits]
        self._changed.update(name for name in names if name in self._to_wake)
        for name in names:
            self._wake([name], self._woken_at.get(name, 0))

    def has_another_code(self, name: str) -> None:
        """The worker that looked at lots of this limit last had another limit in its code."""
        self._wake([name], -1)

    def recall(self) -> None:
        """Queues are consumed again: tasks that are aside for them are due."""
        self._to_recall = dict.fromkeys(self._parking.contents.occupied(self._limits.names), (None, 0))
        self._go_on()

    def _wake(self, names: Iterable[str], since: int) -> None:
        if not self._parking.can_park:
            return
        for name in names:
            self._to_wake[name] = min(since, self._to_wake.get(name, since))
        self._go_on()

    def _go_on(self) -> None:
        if self._cancel is None:
            self._cancel = self._worker.timers.call_after(NEXT, self._in_steps)

    def _in_steps(self) -> None:
        """One step for one limit after the other, until the turn is over."""
        self._cancel = None
        self._outage.ask(lambda: self._some_steps(time.monotonic() + TURN), None)
        if (self._to_wake or self._to_recall or self._is_new) and self._cancel is None:
            self._cancel = self._worker.timers.call_after(IN_AN_OUTAGE if self._outage else NEXT, self._in_steps)

    def _some_steps(self, until: float) -> None:
        if self._is_new:
            names = self._parking.contents.occupied(self._limits.names) if self._parking.can_park else ()
            self._to_wake = {**dict.fromkeys(names, 0), **self._to_wake}
            self._is_new = False
        while self._to_wake and not self._outage and time.monotonic() < until:
            name, since = next(iter(self._to_wake.items()))
            now, more = self._parking.wake(Demand(self._limits[name], name), since)
            if more:
                self._to_wake[name] = -1  # it has changed, and not all have been told
                continue
            self._to_wake.pop(name, None)
            self._woken_at[name] = now
            if name in self._changed:  # once more meanwhile
                self._changed.discard(name)
                self._to_wake[name] = since
        while self._to_recall and not self._outage and time.monotonic() < until:
            name, (after, offset) = next(iter(self._to_recall.items()))
            after, offset = self._parking.register.recall(name, after, offset)
            self._to_recall.pop(name, None)
            if after is not None:
                self._to_recall[name] = after, offset

    def close(self) -> None:
        if self._cancel is not None:
            self._cancel()
            self._cancel = None
        self._to_wake.clear()
        self._to_recall.clear()
