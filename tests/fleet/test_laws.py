"""The laws on a real fleet: a backlog at 100/s over two workers of two, for each pool and throttle."""

from __future__ import annotations

from pathlib import Path

import pytest
import redis

from benchmarks.measures import displacement
from celery_ratelimit.testing import EmbeddedServer
from tests.fleet_of import AGAIN, Fleet, assert_never_over, assert_over

TASKS, RATE = 400, 100


@pytest.mark.parametrize(
    ("throttle", "pool"),
    [
        ("retry", "prefork"),
        ("wait", "prefork"),
        pytest.param("wait", "threads", marks=pytest.mark.slow),
        pytest.param("retry", "solo", marks=pytest.mark.slow),
    ],
)
def test_a_backlog_leaves_at_the_rate(
    server: EmbeddedServer, store: redis.Redis, tmp_path: Path, throttle: str, pool: str
) -> None:
    with Fleet(server, tmp_path, rate=f"{RATE}/s") as fleet:
        for index in range(TASKS):
            fleet.send(throttle, index)
        store.config_resetstat()
        fleet.options = ()  # the plain command of the documentation
        for _ in range(2):
            fleet.launch("-P", pool)
        starts = fleet.wait_for(TASKS, 40)

        assert sorted(start.index for start in starts) == list(range(TASKS))  # each once: nothing lost
        permits = fleet.permits()
        assert sorted(permit.index for permit in permits) == list(range(TASKS))  # each paid, once
        assert_never_over(permits, RATE)
        assert_over(permits, RATE / 2)  # no waste: how much of the rate is used, make bench says
        median, last_percent = displacement(permits)
        scripts = store.info("commandstats")["cmdstat_evalsha"]["calls"] / TASKS
        if throttle == "retry":
            assert fleet.sent_back() <= TASKS * AGAIN
            # A worker that is started later than the other parks what it has taken behind what has left the lot.
            assert median <= RATE
            # One that a busy machine makes late loses its slot after two seconds, and was let out one ahead of it.
            assert last_percent <= 3 * RATE
        else:
            assert fleet.sent_back() == 0
            assert median <= 8  # what one worker has prefetched, while it has to wait for a processor
            assert last_percent <= RATE  # the same, for as long as a second; on a quiet machine 16, make bench says
            assert scripts <= 2
        assert "Traceback" not in fleet.log(0) + fleet.log(1)
