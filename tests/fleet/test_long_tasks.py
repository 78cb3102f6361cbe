"""Long tasks never take every process of a fleet while brief limited ones wait: judged by counts, not by time."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.fleet_of import NewFleet, assert_never_over, errors, until

BRIEF, LONG = "tests.apps.beside.limited", "tests.apps.beside.long"
RATE, TASKS = 20, 100
#: Seconds that a long task takes, more than the test; and the first one's index: brief tasks count from 0.
SECONDS, FIRST_LONG = 900.0, 1000


@pytest.mark.parametrize(
    ("limited_by", "throttle", "processes"),
    [
        ("concurrency", "retry", 2),
        pytest.param("rate", "wait", 4, marks=pytest.mark.slow),
        pytest.param("nothing", "retry", 2, marks=pytest.mark.slow),
    ],
)
def test_brief_tasks_keep_a_process_beside_long_tasks(
    new_fleet: NewFleet, limited_by: str, throttle: str, processes: int
) -> None:
    """No long task ends before the test does: a process that one has is lost to the brief ones."""
    with new_fleet(rate=f"{RATE}/s", app="tests.apps.beside") as fleet:
        fleet.env |= {"TEST_THROTTLE": throttle, "TEST_LONG": limited_by}
        for index in range(TASKS):
            fleet.sender.send_task(BRIEF, args=[index], queue="celery")
        for index in range(2 * processes + 2):
            fleet.sender.send_task(LONG, args=[FIRST_LONG + index, SECONDS], queue="celery")
        fleet.start("-c", str(processes), number=2)

        def started() -> tuple[int, int]:
            indices = [start.index for start in fleet.starts()]
            return sum(index < FIRST_LONG for index in indices), sum(index >= FIRST_LONG for index in indices)

        until(lambda: started()[0] == TASKS, 20, "the start of the brief tasks")
        until(lambda: started()[1] > 0, 20, "the start of a long task")
        starts = fleet.starts()
        last = max(start.at for start in starts if start.index < FIRST_LONG)
        assert sum(start.index >= FIRST_LONG and start.at < last for start in starts) < 2 * processes
        assert max(Counter(start.index for start in fleet.starts()).values()) == 1
        assert_never_over([permit for permit in fleet.permits() if permit.index < FIRST_LONG], RATE)
        assert not errors(fleet.log(0) + fleet.log(1))
