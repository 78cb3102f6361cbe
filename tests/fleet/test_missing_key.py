"""Tasks without the argument of their limit's key: the limit does not apply to them, or they share a bucket."""

from __future__ import annotations

import redis

from tests.fleet_of import NewFleet


def test_missing_key_exempts_tasks_or_shares_a_bucket(new_fleet: NewFleet, store: redis.Redis) -> None:
    with new_fleet() as fleet:
        fleet.start("-P", "threads", "-c", "2")
        fleet.send_each("exempt", range(5))
        fleet.wait_for(5, 20)
        assert not list(store.scan_iter("ratelimit:*{tests.apps.fleet.exempt}*:state"))
        fleet.send_each("without_key", range(5, 11))
        fleet.send("without_key", 11, "ann")
        fleet.wait_for_each([0, 1, 2, 3, 4, 5, 6, 7, 11], 20)
