"""A store that reaches its ``maxmemory`` by parked tasks: each task runs once, and the limits are held."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import redis

from celery_ratelimit.testing import EmbeddedServer, embedded_server
from tests.fleet_of import Fleet, assert_never_over, errors, until

#: A message of some 5 kB.
LARGE = {"padding": "x" * 5000}
TASKS = 1000
MB = 2**20


@pytest.mark.slow
def test_tasks_wait_at_the_broker_while_the_store_is_full(
    server: EmbeddedServer, store: redis.Redis, tmp_path: Path
) -> None:
    with (
        embedded_server(options=["--maxmemory", "6mb"]) as small,
        Fleet(server, tmp_path, rate="50/s", ratelimit_url=small.url) as fleet,
    ):
        for index in range(TASKS):
            fleet.send("retry", index, headers=LARGE)
        fleet.start(number=2)
        starts = fleet.wait_for(TASKS, 40)
        assert sorted(start.index for start in starts) == list(range(TASKS))
        assert_never_over(fleet.permits(), 50)
        for index in (0, 1):
            assert fleet.log(index).count("so no task is parked") == 1
            assert "store is back" not in fleet.log(index), "a full store is no outage"
            assert not errors(fleet.log(index))
            assert "waits in this worker" in fleet.log(index)


def test_parked_tasks_return_from_a_full_store(server: EmbeddedServer, store: redis.Redis, tmp_path: Path) -> None:
    """Other data has filled it, say. New tasks wait at the broker, and are parked again when there is room."""
    with (
        embedded_server(options=["--maxmemory", "8mb"]) as small,
        redis.Redis.from_url(small.url) as client,
        Fleet(server, tmp_path, rate="20/s", ratelimit_url=small.url) as fleet,
    ):
        for index in range(100):
            fleet.send("retry", index, headers=LARGE)
        fleet.start(number=2)
        until(lambda: not store.exists("celery"), 20, "all tasks being parked")
        client.config_set("maxmemory", MB)
        with pytest.raises(redis.exceptions.OutOfMemoryError):
            client.set("more", b"x")
        for index in range(100, 140):
            fleet.send("retry", index, headers=LARGE)
        fleet.start()
        starts = fleet.wait_for(140, 20)
        assert sorted(start.index for start in starts) == list(range(140))
        assert_never_over(fleet.permits(), 20)
        assert "store is back" not in fleet.log(0) + fleet.log(1)
        client.config_set("maxmemory", 100 * MB)
        sent_back, numbers = fleet.sent_back(), itertools.count(140)

        def are_parked_again() -> bool:
            fleet.send("retry", next(numbers), headers=LARGE)
            return fleet.sent_back() > sent_back

        until(are_parked_again, 20, "a park")
        number = next(numbers)
        assert sorted(start.index for start in fleet.wait_for(number, 60)) == list(range(number))
