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


def test_a_busy_worker_that_is_killed_does_not_take_an_idle_workers_queue_along(parking: Backlog, clock: Clock) -> None:
    attend(parking, "idle", "a", lasts=IDLE)
    attend(parking, "busy", "a", lasts=BUSY)
    clock.advance(BUSY + 1)
    assert attend(parking, "another", "b", lasts=BUSY) == set()
    clock.advance(IDLE)
    assert attend(parking, "another", "b", lasts=BUSY) == {"a"}


@pytest.mark.parametrize("lasts", [BUSY, 0.0])
def test_the_claim_of_an_idle_worker_outlives_a_worker_that_leaves(
    parking: Backlog, clock: Clock, lasts: float
) -> None:
    attend(parking, "idle", "a", lasts=IDLE)
    attend(parking, "leaves", lasts=lasts, left=["a"])
    clock.advance(BUSY + 1)
    assert attend(parking, "another", lasts=BUSY, left=["a"]) == set()


def test_a_worker_that_was_idle_is_known_to_be_dead_as_soon_as_a_busy_one(parking: Backlog, clock: Clock) -> None:
    attend(parking, "one", "a", lasts=IDLE)
    attend(parking, "one", "a", lasts=BUSY)
    clock.advance(BUSY)
    assert attend(parking, "another", "b", lasts=BUSY) == {"a"}


def test_the_fleet_is_as_large_as_the_workers_that_are_on_time(parking: Backlog, clock: Clock) -> None:
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
