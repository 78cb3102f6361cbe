"""Ends tasks in the worker's main process. A daemon thread stores their states, as a result backend may hang.

What is relied on; line numbers are of Celery 5.7.0:

* ``Request._announce_revoked`` (celery/worker/request.py 464) ends a task that Celery finds to be revoked or expired.
* ``Celery.backend`` (celery/app/base.py 1746): each thread has a result backend, and so connections, of its own.
* ``state.task_ready`` (celery/worker/state.py 215): a request needs no process any more. ``Task.request_stack``.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from functools import partial
from queue import Queue
from time import monotonic
from typing import Any

from celery.worker import state
from celery.worker.request import Request

from . import requests
from .message_fields import stamp_of
from .prefetch import Prefetch
from .timers import Timers

__all__ = ["FinalStates"]

logger: logging.Logger = logging.getLogger("celery_ratelimit")

#: States that wait for a backend that does not answer, each with its request of some 10 kB.
MAX_WAITING = 1000
#: Seconds that one state takes: then other tasks leave the prefetch; or the backend counts as one that does not answer.
SLOW, STALLED = 0.1, 1.0
#: Seconds outside the prefetch until a task ends without its state; and that a stop takes at most.
DEADLINE, LAST_STATES = 15.0, 5.0
NOT_STORED = "Task %s[%s] ends, but its state is not in the result backend: %s"

_announce_revoked = Request._announce_revoked


class FinalStates:
    """The final states that one worker has yet to store; ``on_revoked``: see :meth:`.Worker.intercept`."""

    def __init__(self, timers: Timers, prefetch: Prefetch, on_revoked: Callable[[Any, Any, bool], None]) -> None:
        self._timers, self._prefetch = timers, prefetch
        self.on_revoked = on_revoked
        self._waiting: Queue[Any] = Queue()
        self._has_thread = False
        # By request: its state is stored; what follows; since when another message is let in, or 0.
        self._ends: dict[Any, tuple[Future[object], tuple[Any, ...], float]] = {}
        self._busy_since = math.inf  # with one state
        self._stop_looking: Callable[[], None] | None = None
        Request._announce_revoked = _announce

    def end(self, request: Any, store: Callable[..., object], *steps: tuple[str, Callable[[], object]]) -> None:
        """Store a task's state in a thread. Then run the steps in the worker's loop, and acknowledge the message."""
        with self._timers.lock:
            if request in self._ends:
                return
            state.task_ready(request)
            context, stored = requests.context_of(request), Future[object]()
            self._ends[request] = stored, steps, 0.0
            if self._stop_looking is None:
                self._stop_looking = self._timers.call_after(SLOW, self._look)
            if self._waiting.qsize() >= MAX_WAITING and self._takes(STALLED):
                self._end(request, f"{MAX_WAITING} others are to be stored before it")
                return
            self._waiting.put((request, partial(store, request=context, store_result=request.store_errors), stored))
            if not self._has_thread:
                threading.Thread(target=self._run, name="celery_ratelimit-states", daemon=True).start()
                self._has_thread = True

    def close(self, *, stopping: bool) -> None:
        """The connection is lost, or the worker stops, and waits a moment. Other messages return to the broker."""
        with self._timers.lock:
            if stopping:
                wait([stored for stored, *_ in self._ends.values()], LAST_STATES)
                self._waiting.put(None)
            for request, (stored, *_) in list(self._ends.items()):
                if stopping and stored.done():
                    self._end(request)
                elif stopping:
                    logger.error(NOT_STORED, request.name, request.id, "this worker stops, and its message goes back")
            self._ends.clear()
            if self._stop_looking is not None:
                self._stop_looking()
                self._stop_looking = None

    def _takes(self, seconds: float) -> bool:
        """Whether the backend is busy with one state for so long."""
        return monotonic() - self._busy_since >= seconds

    def _look(self) -> None:
        """While states wait: if one takes long, let other messages in. Give up what has waited for a dead backend."""
        now = monotonic()
        for request, (stored, steps, since) in list(self._ends.items()) if self._takes(SLOW) else ():
            if not since and len(self._ends) <= MAX_WAITING:
                self._ends[request] = stored, steps, now
                self._prefetch.widen(1)
            elif since and now - since >= DEADLINE and self._takes(STALLED) and not stored.done():
                self._end(request, f"it has not answered within {DEADLINE:g} s")
        self._stop_looking = self._timers.call_after(SLOW, self._look) if self._ends else None

    def _end(self, request: Any, failure: str = "") -> None:
        if request not in self._ends:
            return  # the deadline is over, or the connection is lost
        stored, steps, since = self._ends.pop(request)
        if since:
            self._prefetch.widen(-1)
        if failure:
            logger.error(NOT_STORED, request.name, request.id, failure)
        else:
            steps = ("its result backend", stored.result), *steps
        request.task.request_stack.push(requests.context_of(request))
        try:
            for what, step in steps:
                requests.attempt(request, what, step)
        finally:
            request.task.request_stack.pop()
            request.acknowledge()

    def _run(self) -> None:
        for request, store, stored in iter(self._waiting.get, None):
            if request in self._ends:
                self._busy_since = monotonic()
                try:
                    stored.set_result(store())
                except BaseException as error:  # raised again where the task ends
                    stored.set_exception(error)
                self._busy_since = math.inf
                self._timers.call_soon(self._timers.guarded(partial(self._end, request)))


def _announce(request: Any, reason: str, terminated: bool, signum: Any, expired: Any) -> None:
    states = stamp_of(request.message, "ratelimit_final_states")
    if states is None or terminated:
        _announce_revoked(request, reason, terminated, signum, expired)
    else:
        states.on_revoked(request.task, request._context, bool(expired))
        requests.end_revoked(request, reason, expired)
