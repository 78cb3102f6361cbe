"""Calls the store from the worker's loop, or from threads if the store is far away. A callback gets each reply.

Threads keep the loop free: a worker that waits 2 ms for each reply starts no task meanwhile, and does not notice that a
task has ended. An operation of several calls is a generator: it yields each call and is sent the reply.
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
from . import tuning
from .outage import NotAsked, Outage

__all__ = ["Asks", "CallGeneratorRunner", "Reply", "StoreCalls", "StoreLatency", "advance", "asked"]

logger: logging.Logger = logging.getLogger("celery_ratelimit")


_T = TypeVar("_T")

#: A generator that yields calls to the store, is sent the reply to each, and returns the result. Any thread may call.
Asks = Generator[Callable[[], Any], Any, _T]


@dataclass(frozen=True, slots=True)
class Reply(Generic[_T]):
    """The value that a call has returned, or the ``error`` that it has raised.

    Attributes:
        at: when the reply came, by the monotonic clock.
        seconds: duration of the call, without its wait for a thread.
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
        is_worth_threads: whether threads make the calls, and not the worker's loop.
    """

    def __init__(self) -> None:
        self.round_trip: float = 0.0
        self.is_worth_threads: bool = False
        self._latest: deque[float] = deque(maxlen=tuning.LATEST_REPLIES)

    def note(self, seconds: float) -> None:
        """Note the duration of a call."""
        self.round_trip += tuning.NEWEST_WEIGHT * (min(tuning.MAX_ROUND_TRIP, seconds) - self.round_trip)
        self._latest.append(seconds)
        self.is_worth_threads = min(self._latest) >= (
            tuning.LOOP_BELOW if self.is_worth_threads else tuning.THREADS_FROM
        )


class StoreCalls:
    """Makes the calls of one worker. Only this class knows whether a thread makes them.

    Without an event loop that a thread can wake (green pools, kombu before 5.7) the worker makes them itself.
    """

    def __init__(self, worker: Worker, outage: Outage) -> None:
        self._timers, self._outage = worker.timers, outage
        self.latency: StoreLatency = StoreLatency()
        self._has_loop = not worker.broker.no_event_loop and worker.timers.call_soon_wakes_loop
        self._threads = _threads()
        self._connection = object()  # of the worker to its broker
        self._in_threads: set[Future[Reply[Any]]] = set()

    def open(self, ping: Callable[[], object]) -> None:
        """Measure the store's latency, and let threads connect before their first call: that takes four round trips."""
        self.submit(ping, _ignore, in_loop=True)
        for _ in range(tuning.CONNECTED if self._use_threads else 0):
            self.submit(ping, _ignore)

    def submit(
        self, call: Callable[[], _T], on_reply: Callable[[Reply[_T]], None], *, in_loop: bool = False
    ) -> Future[Reply[_T]] | None:
        """Make a call. ``on_reply`` gets the reply in the worker's loop, before this method returns or later.

        A reply that comes later is discarded if the worker's connection to its broker is lost meanwhile.

        ``in_loop``: the loop makes this call, as it uses objects of the loop. Returns a future of the reply; ``None``:
        ``on_reply`` has it.
        """
        if self._outage:
            on_reply(_not_asked("the store is lost"))
        elif in_loop or not self._use_threads:
            self._receive(_reply_to(call), on_reply)
        else:
            return self._in_thread(call, on_reply)
        return None

    def run(self, asks: Asks[_T], on_end: Callable[[Reply[_T]], None]) -> CallGeneratorRunner[_T]:
        """Make the calls of a generator, one after the other; ``on_end`` gets its result."""
        run = CallGeneratorRunner(self, asks, on_end)
        run.receive(None)
        return run

    def close(self) -> None:
        """Discard replies from now on: the connection to the broker is lost, or the worker stops.

        Calls that wait for a thread are not made. This method waits for calls in flight: otherwise the broker could
        redeliver a message before the store parks it, and the task could both run and be parked.
        """
        self._connection = object()
        threads, self._threads = self._threads, _threads()
        threads.shutdown(wait=False)
        wait([each for each in self._in_threads.copy() if each.running()], tuning.LAST_REPLIES)

    @property
    def _use_threads(self) -> bool:
        return self._has_loop and self.latency.is_worth_threads

    def _receive(self, reply: Reply[_T], on_reply: Callable[[Reply[_T]], None]) -> None:
        if reply.error is None:
            self.latency.note(reply.seconds)
        on_reply(reply)

    def _in_thread(self, call: Callable[[], _T], on_reply: Callable[[Reply[_T]], None]) -> Future[Reply[_T]]:
        # The call is made once: if no thread can be started, the executor has still queued it for a later thread.
        waiting, connection = [call], self._connection

        def make() -> Reply[_T]:
            if connection is not self._connection:
                return _not_asked("nothing waits for this reply any more")
            return _not_asked("the store is lost") if self._outage else _reply_to(waiting.pop())

        def receive(reply: Reply[_T]) -> None:
            if connection is self._connection:
                self._receive(reply, on_reply)

        def has_ended(future: Future[Reply[_T]]) -> None:
            self._in_threads.discard(future)
            self._timers.call_soon(self._timers.guarded(partial(receive, future.result())))

        try:
            future = self._threads.submit(make)
        except RuntimeError:  # no thread can be started
            future = Future()
            future.set_result(make())
        self._in_threads.add(future)
        future.add_done_callback(has_ended)
        return future


class CallGeneratorRunner(Generic[_T]):
    """Makes the calls of a generator one after the other, without recursion if replies come at once."""

    def __init__(self, calls: StoreCalls, asks: Asks[_T], on_end: Callable[[Reply[_T]], None]) -> None:
        self._calls, self._asks, self._on_end = calls, asks, on_end
        self._replies: deque[Reply[Any] | None] = deque()
        self._is_at_it = self._is_over = False
        self._in_flight: Future[Reply[Any]] | None = None

    def receive(self, reply: Reply[Any] | None) -> None:
        """Continue with a reply; ``None``: begin."""
        self._in_flight = None  # a future keeps its callback, which is this method: without a cycle no garbage is left
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
                    self._in_flight = self._calls.submit(step, self.receive)
        finally:
            self._is_at_it = False

    def end(self) -> None:
        """Wait for the reply to the call in flight, and make no other call."""
        if self._is_over:
            return
        self._is_over = True
        if self._is_at_it or self._in_flight is None:  # a greenlet runs the generator
            return
        step = advance(self._asks, self._in_flight.result())
        if isinstance(step, Reply) and step.error is not None:  # the connection to the broker may be lost, too
            logger.debug("calls to the store have ended untimely: %r", step.error)
        self._asks.close()


def advance(asks: Asks[_T], reply: Reply[Any] | None = None) -> Callable[[], Any] | Reply[_T]:
    """Begin, or continue with a reply. Returns the next call, or at the end the result."""
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
    """Make all calls of a generator in this thread, and return the result."""
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
    return ThreadPoolExecutor(tuning.THREADS, "celery_ratelimit-store")
