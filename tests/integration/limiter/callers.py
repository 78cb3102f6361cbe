"""Jobs of many processes and threads at once. A module of its own, so that a spawned process can import it."""

from __future__ import annotations

import faulthandler
import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import accumulate
from threading import Barrier
from typing import Any, NamedTuple

import redis

from celery_ratelimit import Concurrency, Decision, Limit, Limiter
from celery_ratelimit.limiter import blocking_acquire
from celery_ratelimit.limiter.limit_request import LimitRequest
from tests.asking import decide
from tests.conftest import PATIENT
from tests.lua.frozen import us
from tests.lua.model import Answer

#: The store's own clock; besides, every call of a script is written down, in the order in which they ran.
LOGGED_NOW = """
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
redis.call('RPUSH', 'test:log', string.format('%.0f %s', now, ARGV[1]))
"""

PROCESSES, THREADS = 4, 2


@dataclass(frozen=True)
class Asked:
    """A call as its caller saw it; what it asked, and what it was told."""

    id: str
    horizon: int
    claim: int
    answer: Answer
    wanted: tuple[LimitRequest, ...]


class Told(NamedTuple):
    """A call of a public method by the store's clock: when it asked (its last time), and from when on it was let in."""

    asked: int
    at: int
    allowed: bool
    queue_full: bool
    id: str

    @classmethod
    def of(cls, decision: Decision) -> Told:
        wait = us(decision.retry_after)
        asked = decision._granted_at - wait if decision.allowed else decision._granted_at
        return cls(asked, decision._granted_at, decision.allowed, decision.queue_full, decision.id)


class Held(NamedTuple):
    """Places by the store's clock. They were given back at some moment from ``ended`` to ``free``."""

    since: int
    ended: int
    cost: int
    free: int


def store_time(limiter: Limiter) -> int:
    """The store's clock, in microseconds, as the scripts read it."""
    seconds, fraction = limiter.client.time()
    return int(seconds) * 1_000_000 + int(fraction)


def most_at_once(spans: list[tuple[int, int, int]]) -> int:
    """The largest sum of costs of half-open spans that overlap: each is (start, end, cost)."""
    changes = sorted([(start, cost) for start, _, cost in spans] + [(end, -cost) for _, end, cost in spans])
    return max(accumulate(change for _, change in changes))


# -- Many processes and threads at once --------------------------------------------------------------------------------

_barrier: Barrier | None = None


class Crowd:
    """Processes that run a job together, each in some threads, which share one limiter."""

    def __init__(self, pool: ProcessPoolExecutor) -> None:
        self._pool = pool

    def run(self, job: Callable[..., Any], url: str, *args: Any) -> list[Any]:
        """What ``job(limiter, name, *args)`` returned in each of the threads."""
        parts = [self._pool.submit(_in_threads, job, url, number, args) for number in range(PROCESSES)]
        processes = dict(self._pool._processes or {})
        try:
            return [each for part in parts for each in part.result()]
        except BrokenProcessPool as error:  # which signal ended it
            codes = {pid: process.exitcode for pid, process in processes.items()}
            raise AssertionError(f"a process of the crowd ended; exit codes: {codes}") from error


@contextmanager
def crowd() -> Iterator[Crowd]:
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(PROCESSES)
    with ProcessPoolExecutor(PROCESSES, context, initializer=_meet_at, initargs=(barrier,)) as pool:
        yield Crowd(pool)


def _meet_at(barrier: Barrier) -> None:
    global _barrier
    _barrier = barrier
    faulthandler.enable()


def _in_threads(job: Callable[..., Any], url: str, number: int, args: Sequence[Any]) -> list[Any]:
    assert _barrier is not None
    limiter = Limiter.from_url(url + PATIENT)
    with ThreadPoolExecutor(THREADS) as threads:
        _barrier.wait(timeout=200)  # a process has one job at a time, so that each of them has one
        return list(threads.map(lambda n: job(limiter, f"p{number}t{n}", *args), range(THREADS)))


# -- Jobs --------------------------------------------------------------------------------------------------------------


def ask_and_log(
    _: Limiter, name: str, url: str, wanted: Sequence[LimitRequest], seconds: float, dearest: int
) -> list[Asked]:
    """Ask again and again, now without patience, now keeping a slot and returning to it, now taking ahead.

    ``dearest``: the cost goes from that of ``wanted`` up to so many times as much.
    """
    limiter = Limiter(redis.Redis.from_url(url), replace_includes={"now": LOGGED_NOW})
    asked: list[Asked] = []
    end = time.monotonic() + seconds
    number, waiting, demands = 0, "", tuple(wanted)
    while time.monotonic() < end:
        number += 1
        id = waiting or f"{name}-{number}"
        if not waiting:
            demands = tuple(replace(each, cost=each.cost * (1 + number % dearest)) for each in wanted)
        # Every third request keeps a slot if it is refused, every fifth may take a permit 8 ms ahead.
        claim = 1_000_000 if number % 3 == 0 or waiting else 0
        horizon = 8_000 if number % 5 == 0 else 0
        answer = Answer.of(decide(limiter, "acquire", demands, id, horizon, claim))
        asked.append(Asked(id, horizon, claim, answer, demands))
        waiting = id if claim and not answer.allowed else ""
        if waiting and number % 2:
            time.sleep(min(answer.wait, 20_000) / 1e6)
    return asked


def take_turns(limiter: Limiter, _: str, limit: Limit, seconds: float) -> list[Told]:
    """Blocking calls, one after the other, for at least ``seconds``; the last one had to wait."""
    # The decision says how long the call has slept. This process makes no other calls.
    blocking_acquire._good_now = lambda decision: decision
    told: list[Told] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end or told[-1].at == told[-1].asked:
        decision = limiter.acquire(limit, max_wait=10.0)
        told.append(Told.of(decision))
        if not decision.allowed:
            time.sleep(decision.retry_after)
    return told


def hold_places(
    limiter: Limiter, name: str, limit: Concurrency, hold: float, dearest: int, max_wait: float
) -> tuple[list[Held], list[int]]:
    """Hold places again and again for two seconds, always as many as the caller's name says, ``dearest`` at most.

    Returns these, and when a call was refused. Each is given back three times.
    """
    held: list[Held] = []
    refused: list[int] = []
    cost = 1 + sum(map(ord, name)) % dearest
    end = time.monotonic() + 2.0
    while time.monotonic() < end:
        decision = limiter.acquire(limit, cost=cost, max_wait=max_wait)
        if not decision.allowed:
            refused.append(decision._granted_at)
            continue
        time.sleep(hold)
        ended = store_time(limiter)
        given_back = limiter.release(decision)
        held.append(Held(decision._granted_at, ended, cost, store_time(limiter)))
        assert (given_back, limiter.release(decision), limiter.release(decision)) == (True, False, False)
    return held, refused


def hold_and_tell(url: str, limit: Concurrency, pipe: Any) -> None:
    """Take a place, say since when, and never give it back."""
    pipe.send(Told.of(Limiter.from_url(url).acquire(limit)))
    time.sleep(60)
