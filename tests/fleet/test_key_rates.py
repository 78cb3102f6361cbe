"""Keys with rates of their own in code: parked tasks leave at the rate of their key."""

from __future__ import annotations

from pathlib import Path

import redis

from celery_ratelimit.testing import EmbeddedServer
from tests.fleet_of import Fleet, assert_never_over, assert_over

RATES = {0: 20, 1: 5}


def test_parked_tasks_of_each_key_leave_at_its_rate(server: EmbeddedServer, store: redis.Redis, tmp_path: Path) -> None:
    limit = {"rate": "1/s", "key": "{index}", "rates": {"0": "20/s", "1": "5/s"}, "name": "models"}
    with Fleet(server, tmp_path, install=True, ratelimit_tasks={"*.plain": limit}) as fleet:
        for _ in range(20):
            for index in (0, 1, 0, 0, 0):
                fleet.send("plain", index)
        fleet.start("-c", "2", number=2)
        fleet.wait_for(100, 40)
        for index, rate in RATES.items():
            permits = [permit for permit in fleet.permits() if permit.index == index]
            assert_never_over(permits, rate)
            assert_over(permits, rate / 2)
