"""Calls to the store: each reply comes by callback, at once, or from a thread where the store is some way off.

A worker that waits 2 ms for each reply starts nothing meanwhile, and hears of no task that has ended. An operation that
calls the store several times is a generator: it yields each call, and is sent its reply.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Any, Generic, TypeVar, cast

from .._celery import Worker
from ..limiter.outage import NotAsked, Outage

__all__ = ["Asks", "CallSequence", "Reply", "StoreCalls", "StoreLatency", "advance", "asked"]

logger = logging.getLogger("celery_ratelimit")

#: Threads, each with a connection of its own; and how many of them connect when the worker starts.
THREADS, CONNECTED = 4, 2
#: Seconds that a worker which stops waits for replies: a store that hangs has been given up by then.
LAST_REPLIES = 3.0
#: The most seconds of one round trip that count, and its weight in the mean.
MAX_ROUND_TRIP, NEWEST = 0.1, 1 / 8
#: Seconds of a round trip from which on threads make calls, and below which the loop makes them again. Handing a call
#: to a thread takes 0.1 ms.
THREADS_FROM, LOOP_BELOW = 0.001, 0.0005
#: Replies of which the shortest says how far away the store is: others were late for other reasons.
LATEST = 16

_T = TypeVar("_T")

#: Yields calls to the store, which any thread may make, and is sent the reply to each; returns the result.
Asks = Generator[Callable[[], Any], Any, _T]


@dataclass(frozen=True, slots=True)
class Reply(Generic[_T]):
    """What a call has returned, or the ``error`` that it has raised.

    Attributes:
        at: when the reply came.
        seconds: of the call alone, without what it has waited for a thread.
    """

    value: _T | None = None
    error: Exception | None = None
    at: float = 0.0
    seconds: float = 0.0

    def get(self) -> _T:
        """Return the value, or raise the error."""
        if self.error is not None:
            raise self.error
        return cast("_T", self.value)


class StoreLatency:
    """How long the store takes to answer one worker.

    Attributes:
        round_trip: seconds, a mean.
        is_worth_threads: whether a thread is to wait for a reply, and not the worker's loop.
    """

    def __init__(self) -> None:
        self.round_trip, self.is_worth_threads = 0.0, False
        self._latest: deque[float] = deque(maxlen=LATEST)

    def note(self, seconds: float) -> None:
        """A reply has taken so long."""
        self.round_trip += NEWEST * (min(MAX_ROUND_TRIP, seconds) - self.round_trip)
        self._latest.append(seconds)
        self.is_worth_threads = min(self._latest) >= (LOOP_BELOW if self.is_worth_threads else THREADS_FROM)


class StoreCalls:
    """Makes the calls of one worker. Only this class knows whether a thread makes them.

    Without an event loop that a thread can wake (green pools, kombu before 5.7) the worker makes them itself.

    Args:
        worker: the worker.
        outage: while it lasts no call is made.

    Attributes:
        latency: how long replies take.
    """

    def __init__(self, worker: Worker, outage: Outage) -> None:
        self._timers, self._outage, self.latency = worker.timers, outage, StoreLatency()
        self._has_loop = not worker.broker.no_event_loop and worker.timers.call_soon_wakes_loop
        self._threads = _threads()
        self._connection = object()  # of the worker to its broker
        self._in_threads: set[Future[Reply[Any]]] = set()

    def open(self, ping: Callable[[], object]) -> None:
        """Measure how far away the store is, and let threads connect before they are needed: that takes four trips."""
        self.submit(ping, _ignore, in_loop=True)
        for _ in range(CONNECTED if self._use_threads else 0):
            self.submit(ping, _ignore)

    def submit(
        self, call: Callable[[], _T], on_reply: Callable[[Reply[_T]], None], *, in_loop: bool = False
    ) -> Future[Reply[_T]] | None:
        """Make a call. ``on_reply`` gets its reply in the worker's loop: before this returns, or later.

        A reply that comes later is discarded if the worker's connection to its broker is lost meanwhile.

        Args:
            call: calls the store.
            on_reply: called once.
            in_loop: no thread makes this call, as it uses what belongs to the loop.

        Returns:
            What the reply can be waited for with; ``None``: it has come.
        """
        if self._outage:
            on_reply(_not_asked("the store is lost"))
        elif in_loop or not self._use_threads:
            self._hear(_reply_to(call), on_reply)
        else:
            return self._in_thread(call, on_reply)
        return None

    def run(self, asks: Asks[_T], on_end: Callable[[Reply[_T]], None]) -> CallSequence[_T]:
        """Make the calls of a generator, one after the other; ``on_end`` gets its result."""
        run = CallSequence(self, asks, on_end)
        run.hear(None)
        return run

    def close(self) -> None:
        """The connection to the broker is lost, or the worker stops: replies that come now are discarded.

        Calls that wait for a thread are not made. Those in flight are waited for: the broker would hand out a message
        again before the store is asked to park it, and the task could run meanwhile and be parked as well.
        """
        self._connection = object()
        threads, self._threads = self._threads, _threads()
        threads.shutdown(wait=False)
        wait([each for each in self._in_threads.copy() if each.running()], LAST_REPLIES)

    @property
    def _use_threads(self) -> bool:
        return self._has_loop and self.latency.is_worth_threads

    def _hear(self, reply: Reply[_T], on_reply: Callable[[Reply[_T]], None]) -> None:
        if reply.error is None:
            self.latency.note(reply.seconds)
        on_reply(reply)

    def _in_thread(self, call: Callable[[], _T], on_reply: Callable[[Reply[_T]], None]) -> Future[Reply[_T]]:
        # Made once: where no thread can be started the executor has queued it all the same, for a later one.
        waiting, connection = [call], self._connection

        def make() -> Reply[_T]:
            if connection is not self._connection:
                return _not_asked("nothing waits for this reply any more")
            return _not_asked("the store is lost") if self._outage else _reply_to(waiting.pop())

        def hear(reply: Reply[_T]) -> None:
            if connection is self._connection:
                self._hear(reply, on_reply)

        def has_ended(future: Future[Reply[_T]]) -> None:
            self._in_threads.discard(future)
            self._timers.call_soon(self._timers.guarded(partial(hear, future.result())))

        try:
            future = self._threads.submit(make)
        except RuntimeError:  # no thread can be started
            future = Future()
            future.set_result(make())
        self._in_threads.add(future)
        future.add_done_callback(has_ended)
        return future


class CallSequence(Generic[_T]):
    """A generator whose calls are made one after the other, without recursion where replies come at once."""

    def __init__(self, calls: StoreCalls, asks: Asks[_T], on_end: Callable[[Reply[_T]], None]) -> None:
        self._calls, self._asks, self._on_end = calls, asks, on_end
        self._replies: deque[Reply[Any] | None] = deque()
        self._is_at_it = self._is_over = False
        self._in_flight: Future[Reply[Any]] | None = None

    def hear(self, reply: Reply[Any] | None) -> None:
        """Go on with a reply; ``None``: begin."""
        self._replies.append(reply)
        if self._is_at_it or self._is_over:
            return
        self._is_at_it = True
        try:
            while self._replies:
                step = advance(self._asks, self._replies.popleft())
                if self._is_over:
                    self._asks.close()
                elif isinstance(step, Reply):
                    self._is_over = True
                    self._on_end(step)
                else:
                    self._in_flight = self._calls.submit(step, self.hear)
        finally:
            self._is_at_it = False

    def end(self) -> None:
        """Hear the reply to the call that is in flight, and make no other."""
        if self._is_over:
            return
        self._is_over = True
        if self._is_at_it or self._in_flight is None:  # a greenlet is at it
            return
        step = advance(self._asks, self._in_flight.result())
        if isinstance(step, Reply) and step.error is not None:  # the connection to the broker may be lost, too
            logger.debug("calls to the store have ended untimely: %r", step.error)
        self._asks.close()


def advance(asks: Asks[_T], reply: Reply[Any] | None = None) -> Callable[[], Any] | Reply[_T]:
    """Begin, or go on with a reply. Returns the next call, or at the end the result."""
    try:
        if reply is None:
            return next(asks)
        if reply.error is not None:
            return asks.throw(reply.error)
        return asks.send(reply.value)
    except StopIteration as end:
        return Reply(end.value)
    except Exception as error:
        return Reply(error=error)


def asked(asks: Asks[_T]) -> _T:
    """Make each call here, and return the result."""
    step = advance(asks)
    while not isinstance(step, Reply):
        step = advance(asks, _reply_to(step))
    return step.get()


def _reply_to(call: Callable[[], _T]) -> Reply[_T]:
    began = monotonic()
    try:
        value = call()
    except Exception as error:
        at = monotonic()
        return Reply(error=error, at=at, seconds=at - began)
    at = monotonic()
    return Reply(value, at=at, seconds=at - began)


def _not_asked(why: str) -> Reply[Any]:
    return Reply(error=NotAsked(why), at=monotonic())


def _ignore(reply: Reply[Any]) -> None: ...


def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(THREADS, "celery_ratelimit-store")
