"""Questions to a store that is some way off: threads ask them, and the worker's loop does not wait for the answers.

A worker that waits 2 ms for each answer starts nothing meanwhile, and hears of nothing that has ended.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from typing import Any, TypeVar

from .._celery import Worker
from ..errors import StoreUnavailable
from ..limiter.outage import Outage
from .clock import monotonic
from .store_latency import StoreLatency

__all__ = ["THREAD_LATENCY", "StoreCalls"]

#: Seconds of a round trip from which on it is worth a thread: to hand a question over and back takes a tenth of them.
THREAD_LATENCY = 0.001
#: Threads, each with a connection of its own: as many lines ask at once. Those that connect when the worker starts.
MOST, AT_FIRST = 4, 2
#: Seconds that a worker which stops waits for answers: a store that hangs has been given up by then.
LAST_ANSWERS = 3.0

_T = TypeVar("_T")


class StoreCalls:
    """Those of one worker.

    Args:
        worker: has the loop to which answers come back. Nobody is sent where it has none, or another thread cannot
            wake it (kombu before 5.7).
        store: how far away it is.
        outage: of the store: there is nothing to wait for then.
    """

    def __init__(self, worker: Worker, store: StoreLatency, outage: Outage) -> None:
        self._timers, self._store, self._outage = worker.timers, store, outage
        self._has_loop = not worker.broker.apart and worker.timers.are_called_soon
        self._threads = _threads()
        self._connection = object()  # the worker's to its broker
        self._asked: set[Future[Any]] = set()

    @property
    def use_threads(self) -> bool:
        """Whether it is better to go on meanwhile than to wait here."""
        return self._has_loop and self._store.is_at_least(THREAD_LATENCY) and not self._outage

    def open(self, ping: Callable[[], object]) -> None:
        """Measure how far away the store is; and connect before there is something to ask, which takes some trips."""
        began = monotonic()
        ping()
        self._store.note(monotonic() - began)
        for _ in range(AT_FIRST if self.use_threads else 0):
            self.run(ping, lambda _, __: None)

    def run(self, question: Callable[[], _T], done: Callable[[Callable[[], _T], float], None]) -> Callable[[], _T]:
        """Ask, and go on. Returns what waits for the answer.

        ``done`` is called in the loop, with what says the answer, or raises what was raised, and the time when it came;
        or never, if the worker's connection is lost meanwhile.
        """
        # Asked once: where no thread can be started the executor has queued it all the same, for a later one.
        waiting, connection = [question], self._connection

        def ask() -> _T:
            if connection is not self._connection:  # the broker has those for whom it was, and others may have them
                raise StoreUnavailable("nobody waits for the answer any more")
            if self._outage:
                raise self._outage.error
            return waiting.pop()()

        def hear(reply: Callable[[], _T], at: float) -> None:
            if connection is self._connection:
                done(reply, at)

        def is_back(future: Future[_T]) -> None:
            self._timers.call_soon(self._timers.contained(partial(hear, future.result, monotonic())))

        answer = _submit(self._threads, ask)
        self._asked.add(answer)
        answer.add_done_callback(self._asked.discard)
        answer.add_done_callback(is_back)
        return answer.result

    def close(self) -> None:
        """The connection is lost, or the worker stops: nobody is asked who has not been, and no answer is heard.

        What is just being asked comes to the store before the broker has its message again, or that could run meanwhile
        and be parked as well.
        """
        self._connection = object()
        threads, self._threads = self._threads, _threads()
        threads.shutdown(wait=False)  # they end when they have asked what they have been given
        wait([each for each in self._asked.copy() if each.running()], LAST_ANSWERS)


def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(MOST, "celery_ratelimit-store")


def _submit(threads: ThreadPoolExecutor, ask: Callable[[], Any]) -> Future[Any]:
    """Where no thread can be started it is asked here, or the line would wait for ever."""
    try:
        return threads.submit(ask)
    except RuntimeError:
        answer: Future[Any] = Future()
        try:
            answer.set_result(ask())
        except Exception as error:
            answer.set_exception(error)
        return answer
