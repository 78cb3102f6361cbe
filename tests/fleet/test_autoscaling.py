"""The autoscaler starts processes for granted tasks, and none for tasks that wait for a limit."""

from __future__ import annotations

import re

import pytest
import redis

from tests.fleet_of import Fleet, NewFleet, until


def grown(fleet: Fleet) -> int:
    """Processes that the autoscaler has started."""
    return sum(int(number) for number in re.findall(r"Scaling up (\d+) processes", fleet.log()))


@pytest.mark.slow
def test_autoscaler_starts_no_process_for_throttled_tasks(new_fleet: NewFleet, store: redis.Redis) -> None:
    with new_fleet(rate="4/s") as fleet:
        fleet.send_each("wait", range(12))
        fleet.start("--autoscale", "6,1", "-c", "1")
        fleet.wait_for(12, 20)
        idle = {"min": 1, "max": 6, "current": 1, "qty": 0}
        until(lambda: fleet.asked("stats")["autoscaler"] == idle, 20, "an autoscaler without tasks")
        assert grown(fleet) == 0
        fleet.send_each("patient_place", range(12, 18), 8)
        until(lambda: store.llen("celery") == 0 and fleet.started() >= 15, 20, "as many running as the limit allows")
        stats: dict[str, int] = {}

        def only_running_tasks_count() -> bool:
            stats.update(fleet.asked("stats")["autoscaler"])
            return stats["qty"] == 3

        until(only_running_tasks_count, 5, "three that wait for a lease not being counted")
        assert stats["current"] in (3, 4), "the fourth process shows that the limit is closed"
        fleet.wait_for(12 + 2 * 6, 30)


@pytest.mark.parametrize("task", ["wait", "retry", "busy"])
def test_autoscaler_starts_processes_for_granted_tasks(new_fleet: NewFleet, task: str) -> None:
    with new_fleet(rate="1000/s", app="tests.apps.beside", prefix="tests.apps.beside.") as fleet:
        fleet.start("--autoscale", "4,1", "-c", "1")
        fleet.send_each(task, range(8), 5.0)
        fleet.wait_for(4, 30)
        until(lambda: fleet.asked("stats")["autoscaler"]["current"] == 4, 20, "four processes")
