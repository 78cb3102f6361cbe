"""The store of a running fleet loses keys of a limit while tasks are parked (law 12)."""

from __future__ import annotations

import json
from collections import Counter

import redis

from celery_ratelimit import Limiter
from celery_ratelimit.lots import ParkingLots
from celery_ratelimit.testing import EmbeddedServer
from tests.fleet_of import NewFleet, until

NAME = "tests.apps.fleet.retry"


def test_parked_tasks_run_after_the_index_was_lost(
    new_fleet: NewFleet, server: EmbeddedServer, store: redis.Redis
) -> None:
    with new_fleet(rate="50/s") as fleet:
        fleet.env["TEST_CONF"] = json.dumps({"ratelimit_orphans_after": 3.0})
        fleet.start()
        Limiter.from_url(server.url).pause(NAME, 3600, force=True)
        fleet.send_each("retry", range(60))
        until(lambda: [lot.parked for lot in ParkingLots(fleet.sender).lots(NAME)] == [60], 20, "a backlog")
        lost = [key for kind in ("due", "parked") for key in store.keys(f"*:{kind}@*")]
        assert len(lost) == 2
        store.delete(*lost)
        Limiter.from_url(server.url).resume(NAME, force=True)
        fleet.wait_for(60, 40)
        assert Counter(start.index for start in fleet.starts()) == dict.fromkeys(range(60), 1)
        until(lambda: "The store has lost keys of the limit" in fleet.log(), 5, "the warning")
