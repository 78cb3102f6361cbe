"""Tasks without the argument of their limit's key: the limit does not apply to them, or they share a bucket."""

from __future__ import annotations

from pathlib import Path

import redis

from celery_ratelimit.testing import EmbeddedServer
from tests.fleet_of import Fleet


def test_missing_key_exempts_tasks_or_shares_a_bucket(
    server: EmbeddedServer, store: redis.Redis, tmp_path: Path
) -> None:
    with Fleet(server, tmp_path) as fleet:
        fleet.start("-P", "threads", "-c", "2")
        for index in range(5):
            fleet.send("exempt", index)
        fleet.wait_for(5, 20)
        assert not list(store.scan_iter("ratelimit:*{tests.apps.fleet.exempt}*:state"))
        for index in range(5, 11):
            fleet.send("without_key", index)
        fleet.send("without_key", 11, "ann")
        fleet.wait_for(9, 20)
        assert sorted(start.index for start in fleet.starts()) == [0, 1, 2, 3, 4, 5, 6, 7, 11]
