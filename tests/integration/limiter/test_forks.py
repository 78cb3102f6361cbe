"""Forks: a child waits for no lock of its parent's threads, and repeats nothing of the parent's."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from celery_ratelimit import Concurrency, Limiter
from celery_ratelimit.counts.counter import Counter
from celery_ratelimit.store import memory

#: From Python 3.12, where the process has threads.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")

GPU = Concurrency(2, name="gpu")


def in_child(work: Callable[[], object]) -> str:
    """What ``work`` returns in a child process; or how that ended."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(60)  # ends a child that hangs
            os.write(write, repr(work()).encode())
            os._exit(0)
        finally:
            os._exit(1)
    os.close(write)
    with os.fdopen(read) as reply:
        said = reply.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return said if status == 0 else f"ended with {status}"


def test_child_holds_leases_while_a_thread_of_the_parent_has_the_lock(limiter: Limiter) -> None:
    def hold() -> tuple[bool, int]:
        with limiter.permit(GPU) as decision:
            left = limiter.peek(GPU).states[0].remaining
        limiter.close()
        return decision.allowed, left

    with limiter.permit(GPU):
        with limiter._places._lock:
            assert in_child(hold) == "(True, 0)"
        assert limiter.peek(GPU).states[0].remaining == 1, "the child has given back its own place, and no other"
    assert limiter.peek(GPU).states[0].remaining == 2


@pytest.mark.parametrize("locked", ["tally", "arrivals"])
def test_child_counts_while_a_thread_of_the_parent_has_the_lock(locked: str) -> None:
    counter = Counter(lambda seconds: None)
    counter.happened("refused", ["parents"])
    counter.shadowed([("parents", "", 1)])
    with {"tally": counter._tally._lock, "arrivals": counter.arrivals._lock}[locked]:
        assert in_child(lambda: (counter.take(), counter.arrivals.take())) == "([], [])"
    assert [name for name, _ in counter.take()] == [name for name, _ in counter.arrivals.take()] == ["parents"]


def test_child_counts_its_own_decisions_and_nothing_of_the_parent(limiter: Limiter) -> None:
    limiter.quotas["gpu"] = GPU

    def decide() -> None:
        limiter.acquire("gpu")
        limiter.close()

    limiter.acquire("gpu")
    assert in_child(limiter.close) == in_child(decide) == "None"
    limiter.close()
    assert limiter.stats("gpu")["gpu"].results["acquired"] == 2


def test_child_reads_the_clock_of_memory_stores() -> None:
    with memory.clock._lock:
        assert in_child(lambda: memory.clock.stop(None)) == "None"
