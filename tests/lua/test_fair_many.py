"""Very many shares, and a very large one: no task is lost, and each leaves in order."""

from __future__ import annotations

import pytest
import redis

from celery_ratelimit.backlog.backlog import Backlog
from tests.conftest import Clock

from .test_fair_shares import BUCKET, SHARES, TURNS, ids, leave, limit, park, to_park

pytestmark = pytest.mark.slow

MANY = 100_000
FAST = limit("1000000/s", burst=10_000)


def fill(parking: Backlog, shares: int) -> None:
    for first in range(0, MANY, 100):
        park(parking, *[to_park(f"t{number % shares:06}", f"{number}@q") for number in range(first, first + 100)])


def drained(parking: Backlog, clock: Clock) -> list[str]:
    order: list[str] = []
    while left := leave(parking, FAST, horizon=0):
        parking.published({BUCKET: left})
        order += ids(left)
        clock.advance(1)
    return order


def test_many_shares_of_one_task_each(parking: Backlog, store: redis.Redis, clock: Clock) -> None:
    fill(parking, MANY)
    park(parking, to_park("t000000", "second@q"))
    assert drained(parking, clock) == [f"{number}@q" for number in range(MANY)] + ["second@q"]
    assert not store.exists(SHARES, TURNS)


def test_large_share_beside_a_small_one(parking: Backlog, store: redis.Redis, clock: Clock) -> None:
    fill(parking, 1)
    park(parking, to_park("small", "small@q"))
    order = drained(parking, clock)
    assert order.index("small@q") <= 1
    assert [id for id in order if id != "small@q"] == [f"{number}@q" for number in range(MANY)]
    assert not store.exists(SHARES, TURNS)
