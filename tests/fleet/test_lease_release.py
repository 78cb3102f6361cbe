"""Each way in which Celery ends a task releases its lease of a ``Concurrency`` limit, on every pool.

Leases last ten minutes here, and the worker goes on: a free permit was released, and has not expired.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
import redis

from tests.fleet_of import Fleet, NewFleet, errors, until

APP = "tests.apps.ends"
LEASES = "ratelimit:v1:{ends}::leases"
#: What one message can make of itself, on any pool.
BY_ITSELF = ("succeeds", "fails", "is ignored", "is rejected", "is tried again", "is replaced")


def held(store: redis.Redis) -> int:
    """Places that are taken; the two other members are figures."""
    return sum(member not in ("", "\0") for member in store.zrange(LEASES, 0, -1))


def assert_all_leases_are_released(fleet: Fleet, store: redis.Redis) -> None:
    until(lambda: not held(store), 10, f"every place being free ({store.zrange(LEASES, 0, -1)})\n{fleet.log()[-3000:]}")
    others = next_indexes(fleet, 4)
    fleet.send_each("end", others, "succeeds")
    until(lambda: {start.index for start in fleet.starts()} >= set(others), 20, "others having them")


def next_indexes(fleet: Fleet, number: int) -> range:
    first = max([start.index for start in fleet.starts()], default=-1) + 1
    return range(first, first + number)


def send_and_start(fleet: Fleet, number: int, how: str, **options: Any) -> list[Any]:
    """So many tasks that end in one way, and have started."""
    before = fleet.started()
    results = fleet.send_each("end", next_indexes(fleet, number), how, **options)
    fleet.wait_for(before + number, 30)
    return results


def end_by_themselves(fleet: Fleet, store: redis.Redis) -> None:
    before = fleet.started()
    for index, how in zip(next_indexes(fleet, 12), BY_ITSELF * 2, strict=True):
        fleet.send("end", index, how)
    until(lambda: fleet.started() >= before + 16, 30, "16 starts: two tasks are tried again, and two are replaced")


def end_by_a_time_limit(fleet: Fleet, store: redis.Redis, kind: str = "time_limit") -> None:
    for result in send_and_start(fleet, 3, "takes long", **{kind: 1}):
        assert isinstance(result.get(timeout=30, propagate=False), Exception)


def end_by_a_soft_time_limit(fleet: Fleet, store: redis.Redis) -> None:
    end_by_a_time_limit(fleet, store, "soft_time_limit")


def are_terminated(fleet: Fleet, store: redis.Redis) -> None:
    for result in send_and_start(fleet, 2, "takes long"):
        result.revoke(terminate=True)


def lose_their_processes(fleet: Fleet, store: redis.Redis) -> None:
    for how in ("leaves the process", "exits"):
        send_and_start(fleet, 3, how)
        assert_all_leases_are_released(fleet, store)


def are_revoked_before_they_run(fleet: Fleet, store: redis.Redis, expires: datetime | None = None) -> None:
    """All processes are busy meanwhile."""
    indexes, before, received = next_indexes(fleet, 12), fleet.started(), fleet.log().count(f"{APP}.end[")
    fleet.send_each("busy", indexes[:4])
    fleet.wait_for(before + 4, 20)
    results = fleet.send_each("end", indexes[4:], "succeeds", expires=expires)
    until(lambda: fleet.log().count(f"{APP}.end[") >= received + 8, 20, "all having come in")
    if expires is not None:
        until(lambda: datetime.now(timezone.utc) > expires, 5, "their expiring")
    else:
        fleet.sender.control.revoke([result.id for result in results], reply=True)
    (fleet.directory / "go").touch()
    until(lambda: all(result.state == "REVOKED" for result in results), 30, "all having ended")


def expire_before_they_run(fleet: Fleet, store: redis.Redis) -> None:
    are_revoked_before_they_run(fleet, store, datetime.now(timezone.utc) + timedelta(seconds=5))


def wait_while_the_connection_is_lost(fleet: Fleet, store: redis.Redis) -> None:
    before = fleet.started()
    fleet.send_each("end", next_indexes(fleet, 20), "succeeds")
    fleet.wait_for(before + 2, 20)
    store.client_kill_filter(_type="normal", skipme=True)


def run_while_the_connection_is_lost(fleet: Fleet, store: redis.Redis) -> None:
    """Celery before 5.7 does not hear of their ends, on prefork."""
    send_and_start(fleet, 2, "takes a while")
    store.client_kill_filter(_type="normal", skipme=True)


ON_PREFORK = [
    *(end_by_themselves, end_by_a_time_limit, end_by_a_soft_time_limit, are_terminated, lose_their_processes),
    *(are_revoked_before_they_run, run_while_the_connection_is_lost, wait_while_the_connection_is_lost),
]
ON_GEVENT = [
    *(end_by_themselves, end_by_a_time_limit, are_terminated, are_revoked_before_they_run),
    run_while_the_connection_is_lost,
]


@pytest.mark.parametrize(
    ("pool", "late", "ends"),
    [
        pytest.param("prefork", False, ON_PREFORK, id="prefork"),
        pytest.param("threads", False, [end_by_themselves, wait_while_the_connection_is_lost], id="threads"),
        pytest.param("gevent", False, ON_GEVENT, id="gevent", marks=pytest.mark.slow),
        pytest.param("eventlet", True, [end_by_themselves, are_terminated], id="eventlet", marks=pytest.mark.slow),
        pytest.param("prefork", True, [end_by_themselves, expire_before_they_run], id="late", marks=pytest.mark.slow),
        pytest.param("solo", False, [end_by_themselves], id="solo", marks=pytest.mark.slow),
    ],
)
def test_ended_tasks_release_their_leases(
    new_fleet: NewFleet, store: redis.Redis, pool: str, late: bool, ends: list[Callable[[Fleet, redis.Redis], None]]
) -> None:
    if pool in ("gevent", "eventlet"):
        pytest.importorskip(pool, reason=f"there is no {pool} here: pip install {pool}")
    conf = {"broker_transport_options": {"max_connections": 100}, "task_acks_late": late}
    with new_fleet(app=APP, prefix=f"{APP}.", **conf) as fleet:
        fleet.start("-P", pool, "-c", "1" if pool == "solo" else "4")
        for end in ends:
            end(fleet, store)
            assert_all_leases_are_released(fleet, store)


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_soft_shutdown_releases_leases_of_ended_tasks(new_fleet: NewFleet, pool: str) -> None:
    with new_fleet(worker_soft_shutdown_timeout=120.0) as fleet:
        fleet.start("-Q", "first", "-P", pool, "-c", "1")
        fleet.start("-Q", "second", "-P", pool, "-c", "1")
        fleet.send("train", 0, 3.0, 4, queue="first")
        fleet.wait_for(1, 20)
        fleet.send("patient_train", 1, 0.0, 4, queue="second")
        until(lambda: "throttled by limit 'gpus'" in fleet.log(1), 20, "its waiting")
        fleet.workers[0].send_signal(signal.SIGQUIT)
        until(lambda: 1 in [start.index for start in fleet.starts()], 20, "the start of the task that waits")
        assert "Initiating Soft Shutdown" in fleet.log(0)
        assert fleet.workers[0].poll() is None, "it still waits"
        assert not errors(fleet.log(0) + fleet.log(1))
