"""Permits reserved for tasks of high priority are available beside a backlog of low priority."""

from __future__ import annotations

from celery_ratelimit.testing import EmbeddedServer
from tests.fleet_of import NewFleet, assert_never_over, until

#: Tasks of low importance that wait, and of high importance: as many as are set aside for them.
LOW, HIGH = 150, 10


def test_priority_reserve_has_permits_beside_a_backlog(
    new_fleet: NewFleet, server: EmbeddedServer, broker_url: str
) -> None:
    """They come by their own queue, and none is throttled. Each of the others is sent again about once."""
    low, high = (9, 0) if broker_url == server.url else (0, 9)
    limit = {"rate": "20/s", "burst": 20, "priority_reserve": {str(high or 0): HIGH / 20}}
    with new_fleet(
        broker=broker_url, ratelimit_url=server.url, ratelimit_tasks={"tests.apps.fleet.plain": limit}
    ) as fleet:
        fleet.send_each("plain", range(LOW), priority=low)
        fleet.start("-Q", "celery,now", number=2)
        until(lambda: sum(lot.parked for lot in fleet.parking_lots().lots()) >= LOW / 3, 20, "the backlog being parked")
        important = [fleet.send("plain", LOW + index, priority=high, queue="now").id for index in range(HIGH)]
        fleet.wait_for(LOW + HIGH, 60)
        permits = fleet.permits()
        assert_never_over(permits, 20, burst=20)
        assert sorted(permit.index for permit in permits) == list(range(LOW + HIGH))
        logs = "".join(map(fleet.log, range(2)))
        assert [id for id in important if f"[{id}] throttled" in logs] == []
        assert fleet.sent_back() <= 1.2 * LOW
