"""Each way in which Celery ends a task releases its lease of a ``Concurrency`` limit, on every pool.

Leases last ten minutes here, and the worker goes on: a free permit was released, and has not expired.
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
import redis

from celery_ratelimit.testing import EmbeddedServer
from tests.fleet_of import Fleet, until

END, BUSY = "tests.apps.ends.end", "tests.apps.ends.busy"
LEASES = "ratelimit:v1:{ends}::leases"
POOLS = ("prefork", "threads", "gevent", "eventlet", "solo")
#: What one message can make of itself, on any pool.
BY_ITSELF = ("succeeds", "fails", "is ignored", "is rejected", "is tried again", "is replaced")


def fleet_of(server: EmbeddedServer, directory: Path, pool: str, **conf: Any) -> Fleet:
    if pool in ("gevent", "eventlet"):
        pytest.importorskip(pool, reason=f"there is no {pool} here: pip install {pool}")
    fleet = Fleet(server, directory, app="tests.apps.ends", broker_transport_options={"max_connections": 100}, **conf)
    fleet.start("-P", pool, "-c", "1" if pool == "solo" else "4")
    return fleet


def send(fleet: Fleet, index: int, how: str, **options: Any) -> Any:
    return fleet.sender.send_task(END, args=[index, how], **options)


def held(store: redis.Redis) -> int:
    """Places that are taken; the two other members are figures."""
    return sum(member not in ("", "\0") for member in store.zrange(LEASES, 0, -1))


def assert_all_leases_are_released(fleet: Fleet, store: redis.Redis) -> None:
    until(
        lambda: held(store) == 0, 10, f"every place being free ({store.zrange(LEASES, 0, -1)})\n{fleet.log()[-3000:]}"
    )
    first = max([start.index for start in fleet.starts()], default=0) + 1
    for index in range(first, first + 4):
        send(fleet, index, "succeeds")
    until(lambda: {start.index for start in fleet.starts()} >= set(range(first, first + 4)), 20, "others having them")


@pytest.mark.parametrize(
    ("pool", "late"),
    [
        ("prefork", False),
        ("threads", True),
        *(
            pytest.param(*each, marks=pytest.mark.slow)
            for each in [("solo", False), ("prefork", True), ("gevent", True)]
        ),
    ],
)
def test_ended_tasks_release_their_leases(
    server: EmbeddedServer, store: redis.Redis, tmp_path: Path, pool: str, late: bool
) -> None:
    with fleet_of(server, tmp_path, pool, task_acks_late=late) as fleet:
        for index, how in enumerate(BY_ITSELF * 2):
            send(fleet, index, how)
        # Tried again, and replaced: twice each.
        until(lambda: fleet.started() >= 16, 30, f"16 starts ({fleet.started()})\n{fleet.log()[-2000:]}")
        assert_all_leases_are_released(fleet, store)


@pytest.mark.parametrize(
    ("pool", "kind"),
    [
        ("prefork", "time_limit"),
        pytest.param("prefork", "soft_time_limit", marks=pytest.mark.slow),
        pytest.param("gevent", "time_limit", marks=pytest.mark.slow),
    ],
)
def test_time_limit_releases_the_lease(
    server: EmbeddedServer, store: redis.Redis, tmp_path: Path, pool: str, kind: str
) -> None:
    """The other pools of Celery have none."""
    with fleet_of(server, tmp_path, pool) as fleet:
        results = [send(fleet, index, "takes long", **{kind: 1}) for index in range(3)]
        for result in results:
            assert isinstance(result.get(timeout=30, propagate=False), Exception)
        assert_all_leases_are_released(fleet, store)


@pytest.mark.parametrize("pool", ["prefork", *(pytest.param(each, marks=pytest.mark.slow) for each in POOLS[2:4])])
def test_terminated_task_releases_its_lease(
    server: EmbeddedServer, store: redis.Redis, tmp_path: Path, pool: str
) -> None:
    with fleet_of(server, tmp_path, pool) as fleet:
        results = [send(fleet, index, "takes long") for index in range(2)]
        fleet.wait_for(2, 20)
        for result in results:
            result.revoke(terminate=True)
        assert_all_leases_are_released(fleet, store)


def test_lost_process_releases_the_lease(server: EmbeddedServer, store: redis.Redis, tmp_path: Path) -> None:
    with fleet_of(server, tmp_path, "prefork") as fleet:
        for number, how in enumerate(("leaves the process", "exits")):
            for index in range(3):
                send(fleet, 10 * number + index, how)
            fleet.wait_for(fleet.started() + 3 if number else 3, 30)
            assert_all_leases_are_released(fleet, store)


@pytest.mark.parametrize(
    ("how", "pool"),
    [
        ("revoked", "prefork"),
        pytest.param("revoked", "gevent", marks=pytest.mark.slow),
        pytest.param("expired", "prefork", marks=pytest.mark.slow),
    ],
)
def test_task_revoked_or_expired_before_it_runs_releases_its_lease(
    server: EmbeddedServer, store: redis.Redis, tmp_path: Path, pool: str, how: str
) -> None:
    with fleet_of(server, tmp_path, pool) as fleet:
        for index in range(4):
            fleet.sender.send_task(BUSY, args=[100 + index])
        fleet.wait_for(4, 20)
        expires = datetime.now(timezone.utc) + timedelta(seconds=3) if how == "expired" else None
        results = [send(fleet, index, "succeeds", expires=expires) for index in range(8)]
        until(lambda: fleet.log().count(f"{END}[") >= 8, 20, "all having come in")
        if expires is not None:
            until(lambda: datetime.now(timezone.utc) > expires, 5, "their expiring")
        else:
            fleet.sender.control.revoke([result.id for result in results], reply=True)
        (tmp_path / "go").touch()
        until(lambda: all(result.state == "REVOKED" for result in results), 30, "all having ended")
        assert_all_leases_are_released(fleet, store)


@pytest.mark.parametrize("pool", ["prefork", pytest.param("threads", marks=pytest.mark.slow)])
def test_lost_connection_releases_leases_of_tasks_that_do_not_run(
    server: EmbeddedServer, store: redis.Redis, tmp_path: Path, pool: str
) -> None:
    with fleet_of(server, tmp_path, pool) as fleet:
        for index in range(20):
            send(fleet, index, "succeeds")
        fleet.wait_for(2, 20)
        store.client_kill_filter(_type="normal", skipme=True)
        assert_all_leases_are_released(fleet, store)


@pytest.mark.parametrize("pool", ["prefork", pytest.param("gevent", marks=pytest.mark.slow)])
def test_tasks_that_run_through_a_lost_connection_release_their_leases(
    server: EmbeddedServer, store: redis.Redis, tmp_path: Path, pool: str
) -> None:
    """Celery before 5.7 does not hear of their ends, on prefork."""
    with fleet_of(server, tmp_path, pool) as fleet:
        for index in range(2):
            send(fleet, index, "takes a while")
        fleet.wait_for(2, 20)
        store.client_kill_filter(_type="normal", skipme=True)
        assert_all_leases_are_released(fleet, store)
