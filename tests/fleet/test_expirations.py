"""Tasks that wait in a worker and expire there."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import redis

from tests.fleet_of import NewFleet, until


def test_waiting_task_ends_when_it_expires(new_fleet: NewFleet, store: redis.Redis) -> None:
    """It does not wait for its slot, which is in minutes. The paused queue is consumed again."""
    with new_fleet(rate="6/h") as fleet:
        fleet.start()
        fleet.send("wait", 0)
        fleet.wait_for(1, 20)
        expires = datetime.now(timezone.utc) + timedelta(seconds=2)
        results = [fleet.send("wait", index, expires=expires) for index in range(1, 6)]
        until(lambda: all(result.state == "REVOKED" for result in results), 10, "all having expired")
        until(lambda: not store.exists("celery", "unacked"), 10, "their messages being let go")
        assert fleet.started() == 1
