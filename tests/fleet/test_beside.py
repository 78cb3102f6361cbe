"""Limited tasks beside unlimited ones that keep processes busy: judged by order, counts and permits, not by time."""

from __future__ import annotations

from statistics import median
from typing import Any

import pytest
import redis

from tests.fleet_of import Fleet, NewFleet, assert_never_over, until

RATE = 10
#: The first unlimited task's index; limited ones count from 0.
OTHERS = 1000


def beside(new_fleet: NewFleet, rate: float = RATE, **conf: Any) -> Fleet:
    return new_fleet(rate=f"{rate}/s", app="tests.apps.beside", prefix="tests.apps.beside.", **conf)


def started(fleet: Fleet, *, limited: bool) -> int:
    return sum((start.index < OTHERS) == limited for start in fleet.starts())


def others_before(fleet: Fleet, number: int) -> int:
    """How many unlimited tasks had started when so many limited ones had."""
    limited = others = 0
    for start in fleet.starts():
        limited += start.index < OTHERS
        others += start.index >= OTHERS
        if limited == number:
            return others
    raise AssertionError(f"{limited} limited tasks have started, and not {number}")


@pytest.mark.parametrize(
    ("throttle", "pool", "apart", "late"),
    [
        ("retry", "prefork", False, False),
        ("wait", "prefork", True, False),
        pytest.param("retry", "gevent", True, True, marks=pytest.mark.slow),
        pytest.param("wait", "threads", True, True, marks=pytest.mark.slow),
    ],
)
def test_limited_and_unlimited_tasks_alternate(
    new_fleet: NewFleet, throttle: str, pool: str, apart: bool, late: bool
) -> None:
    """Four processes start four unlimited tasks between two limited ones, if no task starves."""
    queue = "others" if apart else "celery"
    with beside(new_fleet, task_acks_late=late) as fleet:
        fleet.send_each(throttle, range(40))
        fleet.send_each("busy", range(OTHERS, OTHERS + 500), 0.1, queue=queue)
        fleet.start("-P", pool, *(("-Q", "celery,others") if apart else ()), number=2)
        until(lambda: started(fleet, limited=True) == 40, 60, "the start of the limited ones")
        between = [others_before(fleet, number + 1) - others_before(fleet, number) for number in range(1, 40)]
        assert median(between) <= 8, "each has its turn"
        assert max(between) <= 80
        assert sum(between) >= 20, "nor do they keep the others out"
        assert_never_over(fleet.permits(), RATE)


@pytest.mark.parametrize("throttle", ["retry", pytest.param("wait", marks=pytest.mark.slow)])
def test_first_task_of_an_idle_limit_starts_in_order_of_arrival(new_fleet: NewFleet, throttle: str) -> None:
    with beside(new_fleet) as fleet:
        fleet.send_each("busy", range(OTHERS, OTHERS + 20), 0.1)
        fleet.send(throttle, 0)
        fleet.send_each("busy", range(OTHERS + 20, OTHERS + 300), 0.1)
        fleet.start(number=2)
        fleet.wait_for(100, 40)
        assert 10 <= others_before(fleet, 1) <= 60


def test_process_is_kept_free_for_tasks_that_were_just_parked(new_fleet: NewFleet) -> None:
    """At a worker's start long tasks are there before the first limited one has come back from its lot."""
    with beside(new_fleet, 2) as fleet:
        fleet.send_each("retry", range(5))
        fleet.send_each("busy", range(OTHERS, OTHERS + 4), 20.0)
        fleet.start("-c", "2")
        until(lambda: started(fleet, limited=True) == 5, 60, "the start of the limited ones")
        assert others_before(fleet, 5) == 1, "the other process was kept"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("throttle", "pool", "size"),
    [("retry", "prefork", 8), ("retry", "gevent", 16), ("wait", "threads", 4)],
)
def test_permits_are_used_soon_after_they_are_granted(new_fleet: NewFleet, pool: str, size: int, throttle: str) -> None:
    """Quick tasks, so that processes look as if they would soon be free; then long ones in all of them."""
    seconds = 6.0
    with beside(new_fleet) as fleet:
        fleet.start("-P", pool, "-c", str(size))
        fleet.send_each("busy", range(OTHERS, OTHERS + 100), 0.0)
        fleet.wait_for(100, 30)
        fleet.send_each("busy", range(2 * OTHERS, 2 * OTHERS + size), seconds)
        fleet.send_each(throttle, range(30))
        fleet.wait_for(100 + size + 30, 40)
        permits = fleet.permits()
        assert_never_over(permits, RATE)
        good = {permit.index: permit.at for permit in permits}
        used_after = [start.at - good[start.index] for start in fleet.starts() if start.index in good]
        assert max(used_after) < seconds / 2, "a task that had to wait for the long ones acquired anew"


@pytest.mark.slow
def test_busy_processes_stay_busy_when_the_connection_is_lost(new_fleet: NewFleet, store: redis.Redis) -> None:
    """Celery before 5.7 forgets what they run."""
    with beside(new_fleet) as fleet:
        fleet.start("-c", "4")
        fleet.send_each("busy", range(OTHERS, OTHERS + 4), 8.0)
        fleet.wait_for(4, 20)
        # Before there is anything to be read: kombu may lose what it is just reading, limited or not.
        store.client_kill_filter(_type="normal", skipme=True)
        fleet.send_each("retry", range(20))
        fleet.wait_for(24, 40)
        permits = fleet.permits()
        assert_never_over(permits, RATE)
        good = {permit.index: permit.at for permit in permits}
        assert max(start.at - good[start.index] for start in fleet.starts() if start.index in good) < 4.0


@pytest.mark.slow
def test_unlimited_tasks_start_beside_a_limit_above_the_pools_capacity(new_fleet: NewFleet) -> None:
    """More returned tasks have a slot than there are processes, all the time."""
    with beside(new_fleet, 100) as fleet:
        fleet.send_each("retry", range(800), 0.1, queue="limited")
        fleet.start("-c", "2", "-Q", "limited,celery")
        fleet.wait_for(80, 40)
        fleet.send_each("busy", range(OTHERS, OTHERS + 3), 0.05)
        until(lambda: started(fleet, limited=False) == 3, 20, "the start of the others")
        assert fleet.started() < 700, "limited ones wait still"
