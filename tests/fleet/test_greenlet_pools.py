"""The laws on pools of greenlets, where waiting for a reply switches to another greenlet, also inside the gate."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import redis

from celery_ratelimit import Limiter
from celery_ratelimit.testing import EmbeddedServer, embedded_server
from tests.far_away import far_away
from tests.fleet_of import AGAIN, Fleet, assert_never_over, assert_over, new_rates, until
from tests.rabbitmq import Broker

RATE = 50


@pytest.fixture
def green(request: pytest.FixtureRequest) -> tuple[str, ...]:
    """The options of a worker with such a pool: gevent's, unless the test says which."""
    pool = getattr(request, "param", "gevent")
    pytest.importorskip(pool, reason=f"there is no {pool} here: pip install {pool}")
    return ("-P", pool, "-c", "20")


def green_fleet(server: EmbeddedServer, directory: Path, **options: Any) -> Fleet:
    """A broker's connection for each greenlet: with kombu's ten, Celery's own acknowledgements fail in a burst."""
    return Fleet(server, directory, broker_transport_options={"max_connections": 100}, **options)


def nothing_is_left(fleet: Fleet, store: redis.Redis) -> None:
    """Every message is acknowledged, none is in a queue or in the store, and no greenlet has died of an error."""
    until(lambda: not store.hlen("unacked"), 10, "every message being acknowledged")
    assert not store.exists("celery", "celery.throttled")
    assert not store.keys("ratelimit:*:payloads@*")
    for index in range(len(fleet.workers)):
        assert "Traceback" not in fleet.log(index)


@pytest.mark.parametrize(
    ("green", "throttle"),
    [("gevent", "retry"), ("gevent", "wait"), pytest.param("eventlet", "retry", marks=pytest.mark.slow)],
    indirect=["green"],
)
def test_a_backlog_leaves_at_the_rate(
    server: EmbeddedServer, store: redis.Redis, tmp_path: Path, green: tuple[str, ...], throttle: str
) -> None:
    rate, tasks = 25, 75
    with green_fleet(server, tmp_path, rate=f"{rate}/s", task_ignore_result=True) as fleet:
        for index in range(tasks):
            fleet.send(throttle, index)
        fleet.start(*green)
        store.config_resetstat()
        fleet.wait_for(tasks, 30)
        nothing_is_left(fleet, store)
        starts = fleet.starts()
        assert sorted(start.index for start in starts) == list(range(tasks))
        permits = fleet.permits()
        assert sorted(permit.index for permit in permits) == list(range(tasks))
        assert_never_over(permits, rate)
        assert_over(permits, rate / 2)
        assert fleet.sent_back() <= (tasks * AGAIN if throttle == "retry" else 0)
        # Each timer is a greenlet, to ``threading.local`` a thread: one that connected whenever it asks would take
        # longer for that than for asking.
        assert store.info("stats")["total_connections_received"] <= 100


@pytest.mark.parametrize("task", ["place", "patient_place"])
def test_concurrency_limit_holds_and_leases_are_released(
    server: EmbeddedServer, store: redis.Redis, tmp_path: Path, green: tuple[str, ...], task: str
) -> None:
    with green_fleet(server, tmp_path) as fleet:
        fleet.start(*green)
        for index in range(1, 31):
            fleet.send(task, index, 0.1)
        starts = fleet.wait_for(60, 60)
        running = 0
        for start in starts:
            running += 1 if start.index > 0 else -1
            assert 0 <= running <= 3
        nothing_is_left(fleet, store)
        assert sorted(start.index for start in fleet.starts() if start.index > 0) == list(range(1, 31))


@pytest.mark.slow
def test_store_outage_of_two_seconds_loses_no_task(
    server: EmbeddedServer, store: redis.Redis, tmp_path: Path, green: tuple[str, ...]
) -> None:
    with (
        embedded_server(persist=True) as limits_store,
        green_fleet(server, tmp_path, rate=f"{RATE}/s", ratelimit_url=limits_store.url) as fleet,
    ):
        fleet.start(*green)
        for index in range(150):
            fleet.send(("retry", "wait")[index % 2], index)
        fleet.wait_for(30, 20)
        limits_store.kill()
        time.sleep(2)
        limits_store.start()
        fleet.wait_for(150, 40)
        nothing_is_left(fleet, store)
        assert sorted(start.index for start in fleet.starts()) == list(range(150))
        for task in (0, 1):
            assert_never_over([permit for permit in fleet.permits() if permit.index % 2 == task], RATE)
        assert fleet.log().count("WARNING/MainProcess] the limiter's store did not") == 1


def test_new_rate_and_ended_pause_apply_to_waiting_tasks(
    server: EmbeddedServer, store: redis.Redis, tmp_path: Path, green: tuple[str, ...]
) -> None:
    name = "tests.apps.fleet.retry"
    limiter = Limiter.from_url(server.url)
    with green_fleet(server, tmp_path, rate="6/m") as fleet:
        fleet.start(*green)
        for index in range(60):
            fleet.send("retry", index)
        fleet.wait_for(1, 20)
        limiter.pause(name, 60, force=True)
        limiter.resume(name, force=True)
        limiter.set_rate(name, f"{RATE}/s", force=True)
        fleet.wait_for(60, 12)  # within the pause that was ended
        nothing_is_left(fleet, store)
        assert sorted(start.index for start in fleet.starts()) == list(range(60))
        assert_never_over(fleet.permits(), RATE)


@pytest.mark.slow
@pytest.mark.parametrize("throttle", ["retry", "wait"])
def test_changing_rates_with_a_slow_store_lose_no_task(
    server: EmbeddedServer, store: redis.Redis, tmp_path: Path, green: tuple[str, ...], throttle: str
) -> None:
    """With a store that takes its time, some greenlet is nearly always in the middle of the gate."""
    name, limiter = f"tests.apps.fleet.{throttle}", Limiter.from_url(server.url)
    with (
        far_away(server, 0.005) as address,
        green_fleet(server, tmp_path, rate="20/s", ratelimit_url=address) as fleet,
    ):
        fleet.start(*green)
        for index in range(300):
            fleet.send(throttle, index)
        new_rates(limiter, name, (20, RATE), pause=0.4)
        fleet.wait_for(300, 20)
        nothing_is_left(fleet, store)
        assert sorted(start.index for start in fleet.starts()) == list(range(300))


@pytest.mark.slow
def test_warm_shutdown_requeues_all_waiting_tasks(
    server: EmbeddedServer, store: redis.Redis, tmp_path: Path, green: tuple[str, ...]
) -> None:
    with green_fleet(server, tmp_path, rate=f"{RATE}/s") as fleet:
        for index in range(150):
            fleet.send(("retry", "wait")[index % 2], index)
        fleet.start(*green)
        fleet.wait_for(30, 20)
        fleet.stop()
        assert "Traceback" not in fleet.log()
        assert not store.hlen("unacked")
        assert fleet.started() < 150
        fleet.start(*green)
        fleet.wait_for(150, 30)
        nothing_is_left(fleet, store)
        assert sorted(start.index for start in fleet.starts()) == list(range(150))


@pytest.mark.slow
@pytest.mark.parametrize(("green", "throttle"), [("gevent", "wait"), ("eventlet", "retry")], indirect=["green"])
def test_on_rabbitmq(
    server: EmbeddedServer, store: redis.Redis, broker: Broker, tmp_path: Path, green: tuple[str, ...], throttle: str
) -> None:
    """One greenlet reads from the broker's connection all the time; no other may read there meanwhile."""
    with Fleet(server, tmp_path, rate="10/s", broker=broker.url, ratelimit_url=server.url) as fleet:
        for index in range(60):  # with "wait", the queue is left alone for a while
            fleet.send(throttle, index)
        fleet.start(*green)
        fleet.wait_for(60, 30)
        assert "Traceback" not in fleet.log()
        assert "could not be" not in fleet.log()
        assert sorted(start.index for start in fleet.starts()) == list(range(60))
        assert_never_over(fleet.permits(), 10)
        fleet.stop()
        assert broker.ready("celery", "celery.throttled") == 0
