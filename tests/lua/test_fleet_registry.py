"""Which queues the workers of a fleet consume, and how many workers there are, as the store adds it up."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from celery_ratelimit.backlog.backlog import Backlog
from tests.conftest import Clock

IDLE, BUSY = 50.0, 6.0


def attend(parking: Backlog, worker: str, *queues: str, lasts: float, left: Sequence[str] = ()) -> frozenset[str]:
    """The queues that no worker consumes."""
    return parking.register.attend(worker, queues, left, lasts)


def test_killed_worker_does_not_remove_the_queue_of_an_idle_worker(parking: Backlog, clock: Clock) -> None:
    attend(parking, "idle", "a", lasts=IDLE)
    attend(parking, "busy", "a", lasts=BUSY)
    clock.advance(BUSY + 1)
    assert attend(parking, "another", "b", lasts=BUSY) == set()
    clock.advance(IDLE)
    assert attend(parking, "another", "b", lasts=BUSY) == {"a"}


@pytest.mark.parametrize("lasts", [BUSY, 0.0])
def test_idle_worker_keeps_its_queue_when_another_leaves(parking: Backlog, clock: Clock, lasts: float) -> None:
    attend(parking, "idle", "a", lasts=IDLE)
    attend(parking, "leaves", lasts=lasts, left=["a"])
    clock.advance(BUSY + 1)
    assert attend(parking, "another", lasts=BUSY, left=["a"]) == set()


def test_idle_and_busy_workers_expire_equally_fast(parking: Backlog, clock: Clock) -> None:
    attend(parking, "one", "a", lasts=IDLE)
    attend(parking, "one", "a", lasts=BUSY)
    clock.advance(BUSY)
    assert attend(parking, "another", "b", lasts=BUSY) == {"a"}


def test_fleet_size_counts_workers_with_recent_heartbeats(parking: Backlog, clock: Clock) -> None:
    """Not their queues, and not workers that others have replaced."""
    for number in range(20):
        attend(parking, f"killed{number}", *"abcdefghij", lasts=IDLE)
    clock.advance(IDLE / 2)
    attend(parking, "ends", "a", lasts=BUSY)
    attend(parking, "new", "a", lasts=BUSY)
    attend(parking, "ends", lasts=0.0, left=["a"])
    attend(parking, "new", "a", lasts=BUSY)
    assert parking.register.workers == 1
    attend(parking, "another", lasts=BUSY)
    assert parking.register.workers == 2
