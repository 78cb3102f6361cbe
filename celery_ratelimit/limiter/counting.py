"""What one process counts goes to the store: about once a second, while there is something to tell."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

from ..counts.counter import Counter
from ..errors import StoreUnavailable
from ..limits.decision import Decision
from .asker import Asker
from .counted import tell_all
from .demand import Demand

__all__ = ["Counting", "Refusals", "note", "note_lost"]

logger = logging.getLogger("celery_ratelimit")

#: Seconds for which nothing is counted after the store has refused it.
_QUIET = 60.0
#: Seconds of waiting that are none: a call that got its permits at once.
_AT_ONCE = 0.01


def note(counter: Counter, demands: Sequence[Demand], decision: Decision, waited: float) -> None:
    """A limiter has decided."""
    if decision.allowed and waited < _AT_ONCE:
        for demand in demands:
            counter.at_once((demand.name, demand.key, demand.cost))
    elif decision.allowed:
        asked = [(demand.name, demand.key, demand.cost) for demand in demands]
        counter.started("waited", asked, waited)
    else:
        counter.happened("refused", [decision.binding] if decision.binding else [each.name for each in demands])


def note_lost(counter: Counter, demands: Sequence[Demand]) -> None:
    """The store has not answered a limiter."""
    counter.happened("store_error", [demand.name for demand in demands])


class Refusals:
    """What the store does not take is dropped, and said once: it is never a task's affair."""

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


class Counting:
    """Counts for one process, and sends it.

    Args:
        asker: the way to the store.
        later: calls a function after so many seconds; default: on a thread of its own.
        is_lost: whether the store is known not to answer: what is counted waits.
        times: how many seconds it is from one time to the next.

    Attributes:
        counter: counts.
    """

    def __init__(
        self,
        asker: Asker,
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
        self._refusals = Refusals()

    def send(self) -> None:
        """Send what there is. Raises nothing."""
        if self._is_lost():
            self.counter.wait()
            return
        self._send()
        if self._asker.shadows.pending and not self._refusals:
            self.counter.again()

    def close(self) -> None:
        """Send what there is, and end the thread."""
        if isinstance(self._timer, threading.Timer):
            self._timer.cancel()
            self._timer.join()
        self._send()

    def _send(self) -> None:
        parts = self.counter.take()
        if not (parts or self.counter.arrivals or self._asker.shadows.pending) or self._refusals:
            return
        try:
            self._asker.drive(tell_all(self._asker.core, self.counter, parts))
        except Exception as error:
            self._refusals.note(error)


def _on_a_thread(seconds: float, call: Callable[[], None]) -> threading.Timer:
    timer = threading.Timer(seconds, call)
    timer.daemon = True
    timer.name = "celery_ratelimit-counts"
    timer.start()
    return timer
