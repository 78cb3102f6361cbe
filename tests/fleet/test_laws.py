"""The laws on a real fleet: a backlog at 100/s over two workers of two, for each pool and throttle."""

from __future__ import annotations

from pathlib import Path

import pytest
import redis

from benchmarks.measures import displacement, share_of_rate
from celery_ratelimit.testing import EmbeddedServer
from tests.fleet_of import Fleet, assert_never_over

pytestmark = pytest.mark.alone

TASKS = {"prefork": 2_000, "threads": 1_000, "solo": 1_000}
RATE = 100


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo"])
@pytest.mark.parametrize("throttle", ["retry", "wait"])
def test_a_backlog_leaves_at_the_rate(
    server: EmbeddedServer, store: redis.Redis, tmp_path: Path, throttle: str, pool: str
) -> None:
    tasks = TASKS[pool]
    with Fleet(server, tmp_path, rate=f"{RATE}/s") as fleet:
        for index in range(tasks):
            fleet.send(throttle, index)
        store.config_resetstat()
        fleet.options = ()  # the plain command, as everybody starts it
        for _ in range(2):
            fleet.launch("-P", pool)
        starts = fleet.wait_for(tasks, 60)

        assert sorted(start.index for start in starts) == list(range(tasks))  # each once: nothing lost
        permits = fleet.permits()
        assert sorted(permit.index for permit in permits) == list(range(tasks))  # each paid, once
        assert_never_over(permits, RATE)
        # No waste. Exactly 1 on a quiet machine (make bench); the margin is for a noisy one.
        assert share_of_rate(starts, RATE) >= 0.97
        median, last_percent = displacement(starts)
        sent_back = fleet.sent_back() / tasks
        scripts = store.info("commandstats")["cmdstat_evalsha"]["calls"] / tasks
        if throttle == "retry":
            assert sent_back <= 1.05
            assert median <= 20
            assert last_percent <= 100
        else:
            assert sent_back == 0
            assert median <= 1
            assert last_percent <= 8  # what two workers have prefetched differs by no more
            assert scripts <= 1.10
        assert "Traceback" not in fleet.log(0) + fleet.log(1)


def test_an_unlimited_task_is_not_held_up_by_a_throttled_backlog(
    server: EmbeddedServer, store: redis.Redis, tmp_path: Path
) -> None:
    with Fleet(server, tmp_path, rate="10/s") as fleet:
        fleet.start()
        for index in range(500):
            fleet.send("retry", index)
        fleet.send("plain", 1_000)
        assert fleet.send("plain", 1_001).get(timeout=15) == 1_001
        assert fleet.started() < 250  # the backlog takes 50 s


def test_a_key_has_a_bucket_of_its_own(server: EmbeddedServer, store: redis.Redis, tmp_path: Path) -> None:
    with Fleet(server, tmp_path, rate="20/s") as fleet:
        for index in range(200):
            fleet.send("tenant", index, f"t{index % 2}")
        fleet.start()
        starts = fleet.wait_for(200, 30)
        permits = fleet.permits()
        for tenant in (0, 1):
            assert_never_over([permit for permit in permits if permit.index % 2 == tenant], 20)
            of_one = [start for start in starts if start.index % 2 == tenant]
            assert share_of_rate(of_one, 20) >= 0.95
