"""The broker's priorities hold among tasks that wait for a limit, too."""

from __future__ import annotations

from celery_ratelimit.testing import EmbeddedServer
from tests.fleet_of import NewFleet, assert_never_over, until

#: Tasks of low importance that wait, and of high importance that come when the first of them have started.
LOW, HIGH = 200, 10
QUEUES = {"celery": {"queue_arguments": {"x-max-priority": 9}}}


def test_tasks_of_high_priority_pass_a_backlog(new_fleet: NewFleet, server: EmbeddedServer, broker_url: str) -> None:
    """They wait only for tasks that have left the backlog, which have slots within a second."""
    low, high = (9, 0) if broker_url == server.url else (0, 9)
    with new_fleet(rate="20/s", broker=broker_url, task_queues=QUEUES) as fleet:
        fleet.send_each("retry", range(LOW), priority=low)
        fleet.start(number=2)
        until(lambda: fleet.parked() >= LOW / 2, 20, "the backlog being parked")
        before = {start.index for start in fleet.starts()}
        for index in range(HIGH):
            fleet.send("retry", LOW + index, priority=high)
        fleet.wait_for(LOW + HIGH, 60)
        permits = sorted(fleet.permits(), key=lambda permit: permit.at)
        order = [permit.index for permit in permits if permit.index not in before]
        passed_by = max(order.index(LOW + index) for index in range(HIGH)) - HIGH
        assert passed_by < LOW / 2, "in the order of arrival, or behind it, all of them"
        assert sorted(order + sorted(before)) == list(range(LOW + HIGH))
        assert_never_over(permits, 20)


def test_priority_reserve_has_permits_beside_a_backlog(
    new_fleet: NewFleet, server: EmbeddedServer, broker_url: str
) -> None:
    """They come by their own queue, and none is throttled. Each of the others is sent again about once."""
    low, high = (9, 0) if broker_url == server.url else (0, 9)
    limit = {"rate": "20/s", "burst": 20, "priority_reserve": {str(high or 0): 10 / 20}}
    with new_fleet(broker=broker_url, ratelimit_tasks={"tests.apps.fleet.plain": limit}) as fleet:
        fleet.send_each("plain", range(150), priority=low)
        fleet.start("-Q", "celery,now", number=2)
        until(lambda: fleet.parked() >= 150 / 3, 20, "the backlog being parked")
        important = [fleet.send("plain", 150 + index, priority=high, queue="now").id for index in range(10)]
        fleet.wait_for(150 + 10, 60)
        permits = fleet.permits()
        assert_never_over(permits, 20, burst=20)
        assert sorted(permit.index for permit in permits) == list(range(150 + 10))
        logs = "".join(map(fleet.log, range(2)))
        assert [id for id in important if f"[{id}] throttled" in logs] == []
        assert fleet.sent_back() <= 1.2 * 150
