"""The worker's timers, and a lock: one thread at a time is in the gate.

What is relied on; line numbers are of Celery and kombu 5.7.0:

* ``Hub.fire_timers(max_timers=10)`` (kombu/asynchronous/hub.py): after ten timers in one turn the hub sleeps
  for up to a second, whatever is due next; more than ten tasks a turn would be late.
* ``Hub.call_soon`` (kombu/asynchronous/hub.py 260) wakes the loop when another thread calls it, since kombu 5.7, which
  has ``Hub._wake_pending`` for that.
* ``Consumer.timer.queue`` and its entries' ``fun``, ``args`` and ``canceled`` (kombu/asynchronous/timer.py,
  celery/utils/timer2.py): requests that wait here for the end of their countdown, for ``Consumer.apply_eta_task``
  (strategy.py 200 and 212, consumer.py 378 and 734).
* A cancelled timer stays in ``Timer._queue`` until its time (``Timer.cancel``, kombu/asynchronous/timer.py), with
  what it would call.
* Where there is no event loop, and the pool is none of greenlets, timers have a thread (celery/utils/timer2.py), which
  sleeps until what was next when it lay down, or for ``schedule.max_interval``. ``Consumer.call_soon`` (consumer.py
  270) then calls when the broker has been read from once more, which takes up to two seconds (loops.py 191).
* ``pool.is_green`` (celery/concurrency/base.py 61), and the ``eta`` and ``entry`` of the greenlets in the queue of such
  a pool's timer (gevent.py 60, eventlet.py 53).
"""

from __future__ import annotations

import functools
import heapq
import logging
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from . import requests
from .broker import Broker

__all__ = ["Timers"]

logger: logging.Logger = logging.getLogger("celery_ratelimit")

#: Seconds that a timer may be late where timers have a thread.
MAX_LATENESS = 0.01
#: Cancelled timers that are always kept; more are taken out when they are half of all.
MAX_CANCELLED = 500


class Timers:
    """Later calls of a worker.

    Attributes:
        lock: held by the thread that is in the gate, where timers have a thread; greenlets need none.
    """

    def __init__(self, consumer: Any, broker: Broker) -> None:
        self._consumer, self._broker = consumer, broker
        self._green = bool(consumer.pool.is_green)
        self._threaded = broker.no_event_loop and not self._green
        self._cancelled = 0
        self.lock: AbstractContextManager[Any] = threading.RLock() if self._threaded else nullcontext()

    def fire_on_time(self) -> None:
        """Let no timer be late because of the number of timers, or of when it was set."""
        hub, timer = self._consumer.hub, self._consumer.timer
        if hub is not None:
            hub.fire_timers = functools.partial(hub.fire_timers, max_timers=1000)
        elif self._threaded:
            getattr(timer, "schedule", timer).max_interval = MAX_LATENESS

    # -- Wrappers --------------------------------------------------------------------------------------------------

    def locked(self, function: Callable[..., None]) -> Callable[..., None]:
        """The function, called with the lock held."""
        if not self._threaded:
            return function

        @functools.wraps(function)
        def locked(*args: Any) -> None:
            with self.lock:
                function(*args)

        return locked

    def guarded(self, function: Callable[..., None]) -> Callable[..., None]:
        """The function, whose errors are logged; only the loss of the connection is raised, for Celery."""

        @functools.wraps(function)
        def guarded(*args: Any) -> None:
            self._guard(function, *args)

        return guarded

    def _guard(self, function: Callable[..., None], *args: Any) -> None:
        try:
            function(*args)
        except Exception as error:
            if isinstance(error, self._broker.connection_errors):
                raise
            logger.error("%r in %s: the worker goes on", error, function, exc_info=True)

    def on_gate_thread(self, function: Callable[[Any], None]) -> Callable[[Any], None]:
        """The function, called on the thread that calls this method, from any thread or greenlet."""
        gate_thread = threading.get_ident()

        def called(argument: Any) -> None:
            if threading.get_ident() == gate_thread:
                function(argument)
            else:
                self.call_soon(functools.partial(function, argument))

        return called

    # -- Later calls -----------------------------------------------------------------------------------------------

    def call_after(self, seconds: float, callback: Callable[[], None]) -> Callable[[], None]:
        """Call ``callback`` on the worker's timer; returns a function that cancels it, unless it is being called."""
        timer, waiting = self._consumer.timer, [callback]

        def fire() -> None:
            if waiting:
                self._guard(waiting.pop())

        entry = timer.call_after(seconds, self.locked(fire))

        def cancel() -> None:
            if waiting:
                waiting.clear()
                if self._green:
                    _kill(entry)  # timer.cancel() would let other greenlets go on in the middle of ours
                else:
                    timer.cancel(entry)
                    self._purge_cancelled()

        return cancel

    def _purge_cancelled(self) -> None:
        """Keep no more cancelled timers than live ones: each request that waits sets one for minutes ahead."""
        self._cancelled += 1
        timer = self._consumer.timer
        queue = getattr(timer, "schedule", timer)._queue
        if self._cancelled < max(MAX_CANCELLED, len(queue) // 2):
            return
        with getattr(timer, "mutex", nullcontext()):  # where it has a thread, which takes entries out
            queue[:] = [each for each in queue if not each.entry.canceled]
            heapq.heapify(queue)
        self._cancelled = 0

    @property
    def call_soon_wakes_loop(self) -> bool:
        """Whether :meth:`call_soon` wakes the worker's loop: kombu's hub does since 5.7."""
        return self._broker.no_event_loop or hasattr(self._consumer.hub, "_wake_pending")

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` in the worker's event loop, from any thread."""
        if self._broker.no_event_loop:  # there call_soon waits for the next message, or two seconds
            self.call_after(0, callback)
        else:
            self._consumer.call_soon(callback)

    # -- Countdowns of requests ------------------------------------------------------------------------------------

    def fire_early(self, wanted: Callable[[Any], bool]) -> None:
        """End the countdowns of the returned requests that are ``wanted``."""
        called = deque(self._disarm(wanted))
        try:
            while called:
                _, arrive, args = called.popleft()
                arrive(*args)
        finally:
            for entry, arrive, args in called:
                entry.fun, entry.args = arrive, args

    def _disarm(self, wanted: Callable[[Any], bool]) -> list[tuple[Any, Callable[..., None], Sequence[Any]]]:
        """The timer's entries for them, by their time, with their calls; the entries themselves call nothing any more.

        All before the first call: during it other timers could fire, and these requests would arrive twice.
        """
        timer = self._consumer.timer
        with getattr(timer, "mutex", nullcontext()):  # where it has a thread, which takes entries out
            if self._green:  # its queue is a set of greenlets, also of the ones that are at work
                waiting = [(g.eta, g.entry) for g in timer.queue]
            else:
                waiting = [(eta, entry) for eta, _, entry in timer.queue if not entry.canceled]
            entries = [entry for _, entry in sorted(waiting, key=lambda each: each[0]) if _holds(entry, wanted)]
            found = [(entry, entry.fun, entry.args) for entry in entries]
            for entry in entries:
                entry.fun, entry.args = _do_nothing, ()
        return found


def _holds(entry: Any, wanted: Callable[[Any], bool]) -> bool:
    """Whether a timer's entry is the countdown of a returned request that is ``wanted``."""
    if getattr(entry.fun, "__name__", "") not in ("apply_eta_task", "_limit_post_eta"):
        return False
    request = entry.args[0]
    # Its own greenlet may be handling it; or it has arrived, and its greenlet handles others of its queue.
    return requests.was_throttled(request) and not requests.has_arrived(request) and wanted(request)


def _do_nothing() -> None:
    """Called by a timer whose request has arrived already."""


def _kill(greenlet: Any) -> None:
    """Kill the greenlet of a green timer's entry, gevent's or eventlet's, without switching to another one now."""
    gevent = sys.modules.get("gevent")
    if gevent is not None and isinstance(greenlet, gevent.Greenlet):
        greenlet.kill(block=False)
    else:
        sys.modules["eventlet"].spawn_n(greenlet.cancel)
