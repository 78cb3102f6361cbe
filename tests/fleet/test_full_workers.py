"""A worker that is full of long tasks leaves returned tasks to workers with free processes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from celery_ratelimit.testing import EmbeddedServer
from tests.fleet_of import Fleet, assert_never_over, errors, until

LIMITED, UNLIMITED = "tests.apps.beside.limited", "tests.apps.beside.busy"
RATE, TASKS = 20, 60
#: The first long task's index, and seconds that it takes: longer than everything else.
LONG, SECONDS = 1000, 900.0
#: New tasks that a full worker has prefetched, as it would in Celery alone.
PREFETCHED = 8


@pytest.fixture(
    params=[
        ("redis", "prefork"),
        pytest.param(("rabbitmq", "threads"), marks=pytest.mark.slow),
    ],
    ids="-".join,
)
def fleet(
    request: pytest.FixtureRequest, server: EmbeddedServer, store: redis.Redis, tmp_path: Path
) -> Iterator[Fleet]:
    kind, pool = request.param
    broker = {"broker": request.getfixturevalue("broker").url} if kind == "rabbitmq" else {}
    with Fleet(server, tmp_path, rate=f"{RATE}/s", app="tests.apps.beside", **broker) as fleet:
        fleet.start("-P", pool, "-c", "2", "-Q", "celery,long")
        fleet.start("-P", pool, "-c", "2", "-Q", "celery")
        yield fleet


def send(fleet: Fleet, task: str, *args: object, queue: str = "celery") -> None:
    fleet.sender.send_task(task, args=args, queue=queue)


def of(fleet: Fleet, *, long: bool) -> list[int]:
    return [start.index for start in fleet.starts() if (start.index >= LONG) == long]


def test_limited_tasks_run_in_the_worker_with_free_processes(fleet: Fleet) -> None:
    """Half of the returned tasks are in the other worker when long tasks fill it, in the middle of a backlog."""
    for index in range(TASKS):
        send(fleet, LIMITED, index)
    until(lambda: len(of(fleet, long=False)) >= TASKS // 4, 45, "the start of some")
    for index in range(8):
        send(fleet, UNLIMITED, LONG + index, SECONDS, queue="long")
    until(lambda: len(of(fleet, long=False)) == TASKS, 45, "the start of the limited ones")
    assert Counter(of(fleet, long=False)) == Counter(range(TASKS))
    until(lambda: len(of(fleet, long=True)) == 2, 60, "a full worker")
    for index in range(TASKS, 2 * TASKS):
        send(fleet, LIMITED, index)
    until(lambda: len(of(fleet, long=False)) >= 2 * TASKS - PREFETCHED, 45, "the start of the new limited tasks")
    assert max(Counter(of(fleet, long=False)).values()) == 1
    assert_never_over(fleet.permits(), RATE)
    assert not errors(fleet.log(0) + fleet.log(1))


@pytest.mark.slow
def test_first_free_process_takes_returned_tasks_when_all_workers_are_full(fleet: Fleet) -> None:
    for index in range(12):
        send(fleet, UNLIMITED, LONG + index, 4.0, queue=("celery", "long")[index % 2])
    until(lambda: len(of(fleet, long=True)) >= 3, 60, "the start of long ones")
    for index in range(10):
        send(fleet, LIMITED, index)
    until(lambda: len(of(fleet, long=False)) == 10, 45, "the start of the limited ones")
    until(lambda: len(of(fleet, long=True)) == 12, 60, "the start of all long ones")
    assert Counter(of(fleet, long=False)) == Counter(range(10))
