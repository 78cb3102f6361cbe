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
import operator
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from . import requests
from .broker import Broker

__all__ = ["Timers"]

logger = logging.getLogger("celery_ratelimit")

#: Seconds that a timer may be late where timers have a thread.
LATEST = 0.01
#: Cancelled timers that are kept, at least: then they are taken out, when they are half of all.
MAX_CANCELLED = 500


class Timers:
    """Calls of a worker that come later.

    Args:
        consumer: Celery's.
        broker: its broker.

    Attributes:
        lock: the lock that a thread in the gate holds, where timers have a thread; greenlets need none.
    """

    def __init__(self, consumer: Any, broker: Broker) -> None:
        self._consumer, self._broker = consumer, broker
        self._green = bool(consumer.pool.is_green)
        self._threaded = broker.no_event_loop and not self._green
        self._cancelled = 0
        self.lock: AbstractContextManager[Any] = threading.RLock() if self._threaded else nullcontext()

    def fire_on_time(self) -> None:
        """From now on no timer is late because of how many there are, or when it was set."""
        hub, timer = self._consumer.hub, self._consumer.timer
        if hub is not None:
            hub.fire_timers = functools.partial(hub.fire_timers, max_timers=1000)
        elif self._threaded:
            getattr(timer, "schedule", timer).max_interval = LATEST

    # -- Whose turn it is ------------------------------------------------------------------------------------------

    def locked(self, function: Callable[..., None]) -> Callable[..., None]:
        """The same, by one thread at a time."""
        if not self._threaded:
            return function

        @functools.wraps(function)
        def locked(*args: Any) -> None:
            with self.lock:
                function(*args)

        return locked

    def guarded(self, function: Callable[..., None]) -> Callable[..., None]:
        """The same, but errors are logged; only a lost connection is raised, for Celery."""

        @functools.wraps(function)
        def guarded(*args: Any) -> None:
            self._contain(function, *args)

        return guarded

    def _contain(self, function: Callable[..., None], *args: Any) -> None:
        try:
            function(*args)
        except Exception as error:
            if isinstance(error, self._broker.connection_errors):
                raise
            logger.error("%r in %s: the worker goes on", error, function, exc_info=True)

    def on_gate_thread(self, function: Callable[[Any], None]) -> Callable[[Any], None]:
        """The same, called where the gate is at home, which is here, from any thread or greenlet."""
        home = threading.get_ident()

        def called(argument: Any) -> None:
            if threading.get_ident() == home:
                function(argument)
            else:
                self.call_soon(functools.partial(function, argument))

        return called

    # -- Calls that come later -------------------------------------------------------------------------------------

    def call_after(self, seconds: float, callback: Callable[[], None]) -> Callable[[], None]:
        """Call ``callback`` on the worker's timer; returns what cancels it, unless it is being called."""
        timer, waiting = self._consumer.timer, [callback]

        def ring() -> None:
            if waiting:
                self._contain(waiting.pop())

        entry = timer.call_after(seconds, self.locked(ring))

        def cancel() -> None:
            if waiting:
                waiting.clear()
                if self._green:
                    _end_soon(entry)  # timer.cancel() would let other greenlets go on in the middle of ours
                else:
                    timer.cancel(entry)
                    self._take_out_cancelled()

        return cancel

    def _take_out_cancelled(self) -> None:
        """Keep no more cancelled timers than others: each request that waits sets one for minutes ahead."""
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
        """End the countdowns of the wanted requests now, which were sent back and wait here."""
        called = deque(self._called_off(wanted))
        try:
            while called:
                _, come, args = called.popleft()
                come(*args)
        finally:
            for entry, come, args in called:
                entry.fun, entry.args = come, args

    def _called_off(self, wanted: Callable[[Any], bool]) -> list[tuple[Any, Callable[..., None], Sequence[Any]]]:
        """The timer's entries for them, by their time, with what they call: from now on they call nothing.

        All before the first comes: until it has, the timers of others could wake, and they would come twice.
        """
        timer = self._consumer.timer
        with getattr(timer, "mutex", nullcontext()):  # where it has a thread, which takes entries out
            if self._green:  # its queue is a set of greenlets, also of the ones that are at work
                waiting = [(g.eta, g.entry) for g in timer.queue]
            else:
                waiting = [(eta, entry) for eta, _, entry in timer.queue if not entry.canceled]
            entries = [entry for _, entry in sorted(waiting, key=_first) if _holds(entry, wanted)]
            found = [(entry, entry.fun, entry.args) for entry in entries]
            for entry in entries:
                entry.fun, entry.args = _nothing, ()
        return found


def _holds(entry: Any, wanted: Callable[[Any], bool]) -> bool:
    """Whether a timer's entry is for such a request."""
    if getattr(entry.fun, "__name__", "") not in ("apply_eta_task", "_limit_post_eta"):
        return False
    request = entry.args[0]
    # A greenlet of its own may be at it; or it has come, and its greenlet is at others of its line.
    return requests.was_throttled(request) and not requests.has_arrived(request) and wanted(request)


_first = operator.itemgetter(0)


def _nothing() -> None:
    """What a timer does whose request has come already."""


def _end_soon(greenlet: Any) -> None:
    """End the greenlet of a green timer's entry, gevent's or eventlet's, without a switch to any other now."""
    gevent = sys.modules.get("gevent")
    if gevent is not None and isinstance(greenlet, gevent.Greenlet):
        greenlet.kill(block=False)
    else:
        sys.modules["eventlet"].spawn_n(greenlet.cancel)
