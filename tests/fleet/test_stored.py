"""Rates and pauses stored while a fleet works apply at once, and to waiting tasks within a second."""

from __future__ import annotations

import time

import pytest
import redis

from benchmarks import records
from benchmarks.measures import worst_second
from celery_ratelimit import Limiter
from tests.fleet_of import Fleet, NewFleet, assert_never_over, assert_over, until

NAME = "tests.apps.fleet."


def parked(fleet: Fleet, task: str) -> int:
    return sum(lot.parked for lot in fleet.parking_lots().lots(NAME + task))


@pytest.mark.parametrize(
    ("task", "pool"),
    [
        ("retry", "prefork"),
        ("retry", "gevent"),
        pytest.param("wait", "threads", marks=pytest.mark.slow),
    ],
)
def test_raised_rate_applies_to_waiting_tasks(
    new_fleet: NewFleet, limiter: Limiter, store: redis.Redis, task: str, pool: str
) -> None:
    with new_fleet(rate="6/m", broker_transport_options={"max_connections": 100}) as fleet:
        fleet.start("-P", pool, number=2)
        fleet.send_each(task, range(200))
        fleet.wait_for(1, 20)
        until(lambda: task == "wait" or not store.exists("celery", "celery.throttled"), 20, "an empty queue")
        assert fleet.started() < 60, "the backlog was to wait"
        assert limiter.set_rate(NAME + task, "100/s", force=True)
        changed = time.time()
        fleet.wait_for_each(range(200), 15)  # at the old rate half an hour
        assert_never_over(fleet.permits(), 100)
        assert_never_over([permit for permit in fleet.permits() if permit.at < changed], 6 / 60)
        assert "Traceback" not in fleet.log(0) + fleet.log(1)
        limiter.unset_rate(NAME + task, force=True)


def test_lowered_rate_and_pause_apply_to_the_next_decision(new_fleet: NewFleet, limiter: Limiter) -> None:
    tasks = ("retry", "wait")

    def permits(task: int, after: float = 0, before: float = 1e12) -> list[records.Start]:
        return [each for each in fleet.permits() if each.index % 2 == task and after < each.at < before]

    with new_fleet(rate="25/s") as fleet:
        fleet.send_in_turn(tasks, 300)
        fleet.start(number=2)
        fleet.wait_for(50, 20)
        asked = time.time()
        for task in tasks:
            limiter.pause(NAME + task, 2, force=True)
        paused = time.time()
        until(lambda: time.time() > paused + 2, 5)
        # A permit may have been taken a tenth of a second ahead.
        assert [permits(task, paused + 0.1, asked + 2) for task in (0, 1)] == [[], []]
        assert fleet.started() < 240
        asked = time.time()
        for task in tasks:
            limiter.set_rate(NAME + task, "10/s", for_=2, force=True)
        lowered = time.time()
        until(lambda: time.time() > lowered + 2, 5)
        slow = [permits(task, lowered + 0.1, asked + 2) for task in (0, 1)]
        fleet.wait_for_each(range(300), 20)  # the code's rate again
        for task in (0, 1):
            assert_never_over(slow[task], 10)
            assert_never_over(permits(task), 25)


def test_waiting_tasks_start_when_a_pause_is_ended(new_fleet: NewFleet, limiter: Limiter) -> None:
    tasks = ("retry", "sliding_log")
    with new_fleet(rate="5/s") as fleet:
        fleet.start(number=2)
        for task in tasks:
            limiter.pause(NAME + task, 600, force=True)
        fleet.send_in_turn(tasks, 40)
        until(lambda: [parked(fleet, task) for task in tasks] == [20, 20], 20, "twenty parked tasks of each limit")
        assert fleet.started() == 0
        for task in tasks:
            assert limiter.resume(NAME + task, force=True)
        fleet.wait_for_each(range(40), 15)  # the pause was for ten minutes
        for number, most in enumerate((6, 5)):
            assert worst_second([permit for permit in fleet.permits() if permit.index % 2 == number]) <= most


def test_endless_pause_gives_up_no_task(new_fleet: NewFleet, limiter: Limiter) -> None:
    """Tasks that were in the worker already wait for longer than any pause can be, and none has a ``max_wait``."""
    with new_fleet(rate="5/s") as fleet:
        fleet.send_each("wait", range(20))
        fleet.start()
        fleet.wait_for(3, 20)
        limiter.pause(NAME + "wait", 1e9, force=True)  # as "celery ratelimit pause" does
        until(lambda: "its turn comes when the limit is resumed" in fleet.log(), 20, "a refusal")
        assert limiter.resume(NAME + "wait", force=True)
        fleet.wait_for_each(range(20), 15)


def test_per_worker_limit_counts_for_each_worker(new_fleet: NewFleet, store: redis.Redis) -> None:
    with new_fleet() as fleet:
        fleet.start(number=2)
        fleet.send_each("own", range(60))
        fleet.wait_for(60, 20)
        permits = fleet.permits()
        # Ten a second and node.
        assert_never_over(permits, 20, burst=2)
        assert_over(permits, 10, burst=2)
        nodes = {key.split(":")[3] for key in store.scan_iter("ratelimit:v1:*own*:slots")}
        assert nodes <= {"@w0@test", "@w1@test"}
