"""A worker's looks at its parking lots: when the next one is, and what it needs of the store."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from .._celery import Worker
from ..limiter.outage import Outage
from .store_calls import Asks, Reply, Run, StoreCalls
from .waking import NEXT, TURN

__all__ = ["RARELY", "Looks"]

logger = logging.getLogger("celery_ratelimit")

#: Seconds between two looks of a worker that has found and parked nothing for a while.
RARELY = 1.0


class Looks:
    """The looks of one worker, one after the other.

    Args:
        worker: the worker.
        outage: while it lasts there are no looks.
        calls: makes the calls of a look.
        look: a look; its result is False where there is more to do after the time that it is given.
        pause: seconds until the next one, if there is not.
        may: whether a look may begin now.
    """

    def __init__(
        self,
        worker: Worker,
        outage: Outage,
        calls: StoreCalls,
        look: Callable[[float], Asks[bool]],
        pause: Callable[[], float],
        may: Callable[[float], bool],
    ) -> None:
        self._worker, self._outage, self._calls = worker, outage, calls
        self._look, self._pause, self._may = look, pause, may
        self._cancel: Callable[[], None] | None = None
        self._soon = self._again = self._is_looking = False
        self._run: Run[bool] | None = None

    @property
    def are_done(self) -> bool:
        """Whether there are looks, now and then."""
        return self._cancel is not None

    def begin(self, seconds: float) -> None:
        """The first one is in so many seconds."""
        self._cancel = self._worker.timers.call_after(seconds, self._now)

    def soon(self, seconds: float) -> bool:
        """The next one is in so many seconds. Returns whether it was later."""
        if self._cancel is None or self._soon:
            return False
        self._soon = True
        self._next(seconds)
        return True

    def end(self) -> None:
        """No look begins any more. A reply that is on its way is heard: tasks may have left their lots."""
        if self._cancel is not None:
            self._cancel()
            self._cancel = None
        run, self._run, self._is_looking = self._run, None, False
        if run is not None:
            run.end()

    def _next(self, seconds: float) -> None:
        if self._cancel is not None:
            self._cancel()
        self._cancel = self._worker.timers.call_after(seconds, self._now)

    def _now(self) -> None:
        self._cancel, self._soon = self._worker.timers.call_after(RARELY, self._now), False
        if self._is_looking:  # the last one waits for a reply
            self._again = True
            return
        now = time.monotonic()
        if self._outage or not self._may(now):
            self._go_on(done=True)
            return
        self._is_looking = True
        run = self._calls.run(self._look(now + TURN), self._on_end)
        self._run = run if self._is_looking else None

    def _on_end(self, reply: Reply[bool]) -> None:
        self._run, self._is_looking = None, False
        self._go_on(done=self._outage.hear(reply.get, True))

    def _go_on(self, *, done: bool) -> None:
        """If there is more to do, the rest of the worker has a turn, and then this goes on."""
        again, self._again = self._again or not done, False
        if self._cancel is not None and not self._soon:  # else it was ended, or a task was parked meanwhile
            self._next(NEXT if again else self._pause())
