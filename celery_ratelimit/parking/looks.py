"""A worker's looks at the lots: when, and that its loop does not wait for a store that is some way off."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from .._celery import Worker
from ..limiter.outage import Outage
from .asks import Asks, Ended, Errands, go_on
from .waking import NEXT, TURN

__all__ = ["RARELY", "Looks"]

logger = logging.getLogger("celery_ratelimit")

#: Seconds between two looks of a worker that has found and parked nothing for a while.
RARELY = 1.0


class Looks:
    """Of one worker, one after the other.

    Args:
        worker: the worker.
        outage: while it lasts nobody looks.
        errands: to a store that is some way off.
        look: a look; it ends, and returns False, where there is more to do when it is later than it is told.
        pause: seconds until the next one, if there is not.
        may: whether one may look now.
    """

    def __init__(
        self,
        worker: Worker,
        outage: Outage,
        errands: Errands,
        look: Callable[[float], Asks[bool]],
        pause: Callable[[], float],
        may: Callable[[float], bool],
    ) -> None:
        self._worker, self._outage, self._errands = worker, outage, errands
        self._begin, self._pause, self._may = look, pause, may
        self._cancel: Callable[[], None] | None = None
        self._soon = self._again = False
        self._look: Asks[bool] | None = None
        self._reply: Callable[[], Any] | None = None  # waits for the answer that is on its way

    @property
    def are_done(self) -> bool:
        """Whether somebody looks, now and then."""
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
        """Nobody looks any more. What is just being told is heard: tasks may have left their lots."""
        if self._cancel is not None:
            self._cancel()
            self._cancel = None
        look, reply = self._look, self._reply
        self._look = self._reply = None
        if look is not None and reply is not None:
            try:
                self._outage.hear(lambda: go_on(look, reply), None, quietly=True)
            except Exception as error:  # the connection to the broker may be lost: others publish what has left
                logger.debug("a look at lots has ended untimely: %r", error)
            look.close()

    def _next(self, seconds: float) -> None:
        if self._cancel is not None:
            self._cancel()
        self._cancel = self._worker.timers.call_after(seconds, self._now)

    def _now(self) -> None:
        self._cancel, self._soon = self._worker.timers.call_after(RARELY, self._now), False
        if self._look is not None:  # the last one waits for an answer
            self._again = True
            return
        now = time.monotonic()
        if self._outage or not self._may(now):
            self._has_looked(done=True)
            return
        self._look = self._begin(now + TURN)
        self._go_on(None)

    def _go_on(self, reply: Callable[[], Any] | None) -> None:
        """With a look: it begins, or there is an answer."""
        look, self._reply, done = self._look, None, True
        assert look is not None
        try:
            step = self._outage.hear(lambda: go_on(look, reply), None)
            while step is not None and not isinstance(step, Ended):
                if self._errands.use_threads:
                    self._reply = self._errands.run(step, lambda reply, _: self._go_on(reply))
                    return
                asks = step
                step = self._outage.ask(lambda: go_on(look, asks), None)  # noqa: B023
            done = step is None or step.result
        finally:
            if self._reply is None:
                look.close()
                self._look = None
        self._has_looked(done=done)

    def _has_looked(self, *, done: bool) -> None:
        """If there is more to do, the rest of the worker has a turn, and then this goes on."""
        again, self._again = self._again or not done, False
        if self._cancel is not None and not self._soon:  # else it was ended, or somebody was parked meanwhile
            self._next(NEXT if again else self._pause())
