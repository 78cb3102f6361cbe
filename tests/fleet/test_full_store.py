"""A store that reaches its ``maxmemory`` by parked tasks: each task runs once, and the limits are held."""

from __future__ import annotations

import itertools

import pytest
import redis

from celery_ratelimit.testing import embedded_server
from tests.fleet_of import NewFleet, assert_never_over, errors, until

#: A message of some 5 kB.
LARGE = {"padding": "x" * 5000}
TASKS = 1000
MB = 2**20


@pytest.mark.slow
def test_tasks_wait_at_the_broker_while_the_store_is_full(new_fleet: NewFleet, store: redis.Redis) -> None:
    with (
        embedded_server(options=["--maxmemory", "6mb"]) as small,
        new_fleet(rate="50/s", ratelimit_url=small.url) as fleet,
    ):
        fleet.send_each("retry", range(TASKS), headers=LARGE)
        fleet.start(number=2)
        fleet.wait_for_each(range(TASKS), 40)
        assert_never_over(fleet.permits(), 50)
        for index in (0, 1):
            assert fleet.log(index).count("so no task is parked") == 1
            assert "store is back" not in fleet.log(index), "a full store is no outage"
            assert not errors(fleet.log(index))
            assert "waits in this worker" in fleet.log(index)


def test_parked_tasks_return_from_a_full_store(new_fleet: NewFleet, store: redis.Redis) -> None:
    """Other data has filled it, say. New tasks wait at the broker, and are parked again when there is room."""
    with (
        embedded_server(options=["--maxmemory", "8mb"]) as small,
        redis.Redis.from_url(small.url) as client,
        new_fleet(rate="20/s", ratelimit_url=small.url) as fleet,
    ):
        fleet.send_each("retry", range(100), headers=LARGE)
        fleet.start(number=2)
        until(lambda: not store.exists("celery"), 20, "all tasks being parked")
        client.config_set("maxmemory", MB)
        with pytest.raises(redis.exceptions.OutOfMemoryError):
            client.set("more", b"x")
        fleet.send_each("retry", range(100, 140), headers=LARGE)
        fleet.start()
        fleet.wait_for_each(range(140), 20)
        assert_never_over(fleet.permits(), 20)
        assert "store is back" not in fleet.log(0) + fleet.log(1)
        client.config_set("maxmemory", 100 * MB)
        sent_back, numbers = fleet.sent_back(), itertools.count(140)

        def are_parked_again() -> bool:
            fleet.send("retry", next(numbers), headers=LARGE)
            return fleet.sent_back() > sent_back

        until(are_parked_again, 20, "a park")
        number = next(numbers)
        fleet.wait_for_each(range(number), 60)
