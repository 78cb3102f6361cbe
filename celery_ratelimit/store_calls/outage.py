"""Outages of the store: one probe for all callers, growing pauses for tasks, and one log line a minute."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from ..errors import STORE_TROUBLES, RateLimitError, StoreMisconfigured, StoreUnavailable
from ..limiter.sync_store import StoreRunner
from .tuning import LONGEST_DEFERRAL, OUTAGE_WARNING_INTERVAL, PROBE_INTERVAL, SHORTEST_DEFERRAL

__all__ = ["NotAsked", "Outage", "TaskDeferral"]

logger: logging.Logger = logging.getLogger("celery_ratelimit")


class NotAsked(StoreUnavailable):
    """The store was not called: it is lost already, or the reply is no longer needed."""


_T = TypeVar("_T")
_U = TypeVar("_U")


class TaskDeferral:
    """Deferral of tasks while the store does not serve: growing pauses, and one log line a minute.

    Attributes:
        since: start of the outage, by the process's clock; 0.0: there was none.
    """

    def __init__(self) -> None:
        self.since: float = 0.0
        self._warned_at = float("-inf")
        self._all_back = 0.0  # when all deferred tasks are back

    def warn(self, error: RateLimitError) -> bool:
        """Log that the store does not serve, unless that was logged in the last minute. Returns whether it was now."""
        now = time.monotonic()
        if now - self._warned_at < OUTAGE_WARNING_INTERVAL:
            return False
        self._warned_at = now
        said = str(error).rstrip(".")
        logger.warning("%s. Limited tasks are handled as ratelimit_on_store_error says until it is back", said)
        return True

    def begin(self, *, may_go_on: bool) -> None:
        """Begin an outage; ``may_go_on``: continue the last one if its deferred tasks are not all back yet."""
        now = time.monotonic()
        if not may_go_on or now > self._all_back + PROBE_INTERVAL:
            self.since = now

    def pause(self) -> float:
        """Seconds until a deferred task comes back: as long as the outage already lasts, jittered."""
        now = time.monotonic()
        pause = min(LONGEST_DEFERRAL, max(SHORTEST_DEFERRAL, now - self.since)) * random.uniform(0.5, 1.5)
        self._all_back = max(self._all_back, now + pause)
        return pause


class Outage:
    """Remembers that the store is lost, so that a hung store blocks the worker's event loop once, not for each task.

    True while the store is lost. A thread probes the store; until it answers, no other call is made. A store that
    refuses to serve because of its set-up counts as lost, too: a wrong password must not cost a worker its tasks.

    Args:
        asker: calls the store.
        call_soon: calls a function in the worker's event loop, from any thread.
        on_end: called in the event loop when the store answers again.
    """

    def __init__(
        self, asker: StoreRunner, call_soon: Callable[[Callable[[], None]], None], on_end: Callable[[], None]
    ) -> None:
        self._asker, self._call_soon, self._on_end = asker, call_soon, on_end
        self._deferral = TaskDeferral()
        self._said = False
        self._over: threading.Event | None = None
        self.error: RateLimitError = StoreUnavailable("the limiter's store is not lost")

    def __bool__(self) -> bool:
        return self._over is not None or self._asker.link.is_moving

    @property
    def is_a_move(self) -> bool:
        """Whether the Sentinels are choosing a new master. Nothing is lost yet, and no call is made until they have."""
        return self._over is None and self._asker.link.is_moving

    def ask(self, question: Callable[[], _T], otherwise: _U, *, quietly: bool = False) -> _T | _U:
        """Call the store and return its reply; ``otherwise`` while it is lost. Notes an outage, unless ``quietly``.

        Other errors are raised.
        """
        return otherwise if self else self.read(question, otherwise, quietly=quietly)

    def read(self, reply: Callable[[], _T], otherwise: _U, *, quietly: bool = False) -> _T | _U:
        """As :meth:`ask`, for a reply that has come already: it counts also if an outage was noted meanwhile."""
        try:
            return reply()
        except NotAsked:
            return otherwise
        except STORE_TROUBLES as error:
            if quietly:
                logger.debug("the store does not answer: %r", error)
            else:
                self.begin(error)
            return otherwise

    def begin(self, error: RateLimitError, on_end: Callable[[], None] | None = None) -> None:
        """Begin an outage. ``on_end`` is called when the store answers again, before the instance's own ``on_end``."""
        self._said = self._deferral.warn(error) or self._said
        if self._over is None:
            self.error = error
            # A store that refuses to serve may serve a probe: then it is the same outage.
            self._deferral.begin(may_go_on=isinstance(error, StoreMisconfigured))
            self._over = threading.Event()
            args = (self._over, [each for each in (on_end, self._on_end) if each is not None])
            threading.Thread(target=self._look, args=args, name="celery_ratelimit-outage", daemon=True).start()

    def close(self) -> None:
        if self._over is not None:
            self._over.set()
            self._over = None

    def pause(self) -> float:
        """See :meth:`TaskDeferral.pause`."""
        return self._deferral.pause()

    def _look(self, over: threading.Event, on_end: Sequence[Callable[[], None]]) -> None:
        while not over.wait(PROBE_INTERVAL):
            try:
                self._asker.probe()
            except STORE_TROUBLES:
                continue
            self._call_soon(lambda: self._end(over, on_end))
            return

    def _end(self, over: threading.Event, on_end: Sequence[Callable[[], None]]) -> None:
        if over is not self._over:
            return
        if self._said:  # an error of every probe is logged once
            logger.warning("The limiter's store is back after %.1f s", time.monotonic() - self._deferral.since)
        self._said = False
        self._over = None
        for each in on_end:
            each()
