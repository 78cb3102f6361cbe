"""Long tasks take neither every process of a fleet while brief limited ones wait, nor those that return."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from celery_ratelimit.testing import EmbeddedServer
from tests.fleet_of import Fleet, NewFleet, assert_never_over, errors, until

from .test_beside import beside

RATE, TASKS = 20, 100
#: The first long task's index, and seconds that it takes: longer than everything else.
LONG, SECONDS = 1000, 900.0
#: New tasks that a full worker has prefetched, as it would in Celery alone.
PREFETCHED = 8


def of(fleet: Fleet, *, long: bool) -> list[int]:
    return [start.index for start in fleet.starts() if (start.index >= LONG) == long]


@pytest.mark.parametrize(
    ("long", "throttle", "processes"),
    [
        ("within_concurrency", "retry", 2),
        pytest.param("within_rate", "wait", 4, marks=pytest.mark.slow),
        pytest.param("busy", "retry", 2, marks=pytest.mark.slow),
    ],
)
def test_brief_tasks_keep_a_process_beside_long_tasks(
    new_fleet: NewFleet, long: str, throttle: str, processes: int
) -> None:
    """No long task ends before the test does: a process that one has is lost to the brief ones."""
    with beside(new_fleet, RATE) as fleet:
        fleet.send_each(throttle, range(TASKS))
        fleet.send_each(long, range(LONG, LONG + 2 * processes + 2), SECONDS)
        fleet.start("-c", str(processes), number=2)
        until(lambda: len(of(fleet, long=False)) == TASKS, 20, "the start of the brief tasks")
        until(lambda: of(fleet, long=True), 20, "the start of a long task")
        starts = fleet.starts()
        last = max(start.at for start in starts if start.index < LONG)
        assert sum(start.index >= LONG and start.at < last for start in starts) < 2 * processes
        assert max(Counter(start.index for start in fleet.starts()).values()) == 1
        assert_never_over([permit for permit in fleet.permits() if permit.index < LONG], RATE)
        assert not errors(fleet.log(0) + fleet.log(1))


@pytest.fixture(params=["prefork", pytest.param("threads", marks=pytest.mark.slow)])
def one_of_long(request: pytest.FixtureRequest, new_fleet: NewFleet, server: EmbeddedServer) -> Iterator[Fleet]:
    """Two workers of two processes; one has long tasks, too. That of threads is on RabbitMQ."""
    url = server.url if request.param == "prefork" else request.getfixturevalue("broker").url
    with beside(new_fleet, RATE, broker=url) as fleet:
        for queues in ("celery,long", "celery"):
            fleet.start("-P", request.param, "-c", "2", "-Q", queues)
        yield fleet


def test_limited_tasks_run_in_the_worker_with_free_processes(one_of_long: Fleet) -> None:
    """Half of the returned tasks are in the other worker when long tasks fill it, in the middle of a backlog."""
    fleet, tasks = one_of_long, 60
    fleet.send_each("retry", range(tasks))
    until(lambda: len(of(fleet, long=False)) >= tasks // 4, 45, "the start of some")
    fleet.send_each("busy", range(LONG, LONG + 8), SECONDS, queue="long")
    until(lambda: len(of(fleet, long=False)) == tasks, 45, "the start of the limited ones")
    assert Counter(of(fleet, long=False)) == Counter(range(tasks))
    until(lambda: len(of(fleet, long=True)) == 2, 60, "a full worker")
    fleet.send_each("retry", range(tasks, 2 * tasks))
    until(lambda: len(of(fleet, long=False)) >= 2 * tasks - PREFETCHED, 45, "the start of the new limited tasks")
    assert max(Counter(of(fleet, long=False)).values()) == 1
    assert_never_over(fleet.permits(), RATE)
    assert not errors(fleet.log(0) + fleet.log(1))


@pytest.mark.slow
def test_first_free_process_takes_returned_tasks_when_all_workers_are_full(one_of_long: Fleet) -> None:
    fleet = one_of_long
    for index in range(12):
        fleet.send("busy", LONG + index, 4.0, queue=("celery", "long")[index % 2])
    until(lambda: len(of(fleet, long=True)) >= 3, 60, "the start of long ones")
    fleet.send_each("retry", range(10))
    until(lambda: len(of(fleet, long=False)) == 10, 45, "the start of the limited ones")
    until(lambda: len(of(fleet, long=True)) == 12, 60, "the start of all long ones")
    assert Counter(of(fleet, long=False)) == Counter(range(10))


def test_solo_worker_acknowledges_each_task_at_its_end(new_fleet: NewFleet) -> None:
    """Not with the tasks behind it: a worker that is killed meanwhile would repeat them all."""
    with new_fleet(app="tests.apps.slow", prefix="tests.apps.slow.", task_acks_late=True) as fleet:
        results = [fleet.send("unacknowledged") for _ in range(12)]
        fleet.start("-P", "solo")
        left = sorted((result.get(timeout=60) for result in results), reverse=True)
        assert all(number <= 12 - ended for ended, number in enumerate(left)), left
