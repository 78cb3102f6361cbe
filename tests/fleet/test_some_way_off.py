"""Workers whose store is some way off, so that threads ask it while the worker goes on: the laws hold all the same."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import pytest
import redis

from celery_ratelimit import Limiter
from celery_ratelimit.testing import EmbeddedServer
from tests.far_away import far_away, relay
from tests.fleet_of import Fleet, assert_never_over, new_rates, until
from tests.rabbitmq import Broker

RATE, TASKS = 50, 250
AWAY = 0.005


def nothing_is_left(fleet: Fleet, store: redis.Redis) -> None:
    until(lambda: not fleet.parking_lots().lots() and not store.hlen("unacked"), 20, "every message being gone")


@pytest.mark.parametrize("throttle", ["retry", pytest.param("wait", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "pool", ["prefork", *(pytest.param(pool, marks=pytest.mark.slow) for pool in ("threads", "solo"))]
)
def test_never_over_and_each_task_once(
    server: EmbeddedServer, store: redis.Redis, tmp_path: Path, throttle: str, pool: str
) -> None:
    with far_away(server, AWAY) as address, Fleet(server, tmp_path, rate=f"{RATE}/s", ratelimit_url=address) as fleet:
        for index in range(TASKS):
            fleet.send(throttle, index)
        fleet.start("-P", pool, number=2)
        for index in range(20):
            fleet.send("plain", TASKS + index)
        fleet.wait_for(TASKS + 20, 40)
        nothing_is_left(fleet, store)
        assert sorted(start.index for start in fleet.starts()) == list(range(TASKS + 20))
        assert_never_over(fleet.permits(), RATE)
        assert "Traceback" not in fleet.log(0) + fleet.log(1)


@pytest.mark.slow
@pytest.mark.parametrize("throttle", ["retry", "wait"])
def test_a_warm_stop_with_questions_on_their_way_gives_everything_back(
    server: EmbeddedServer, store: redis.Redis, tmp_path: Path, throttle: str
) -> None:
    tasks, rate = 120, 15
    with far_away(server, 0.02) as address, Fleet(server, tmp_path, rate=f"{rate}/s", ratelimit_url=address) as fleet:
        for index in range(tasks):
            fleet.send(throttle, index)
        for _ in range(3):
            began = fleet.started()
            fleet.start(number=1)
            fleet.wait_for(began + 15, 20)
            fleet.stop()
            assert not store.hlen("unacked")
        fleet.start(number=2)
        fleet.wait_for(tasks, 40)
        nothing_is_left(fleet, store)
        runs = Counter(start.index for start in fleet.starts())
        assert sorted(runs) == list(range(tasks))
        # Celery delivers again what it is just handing to a process when it is told to stop (Fleet.stop): one at most.
        assert runs.total() - tasks <= 3
        assert_never_over(fleet.permits(), rate)


@pytest.mark.slow
def test_killed_workers_lose_nothing(
    server: EmbeddedServer, store: redis.Redis, broker: Broker, tmp_path: Path
) -> None:
    """On RabbitMQ, with ``acks_late``: what ran when its worker was killed may run again, and nothing else."""
    with (
        far_away(server, AWAY) as address,
        Fleet(server, tmp_path, rate=f"{RATE}/s", broker=broker.url, ratelimit_url=address) as fleet,
    ):
        for index in range(TASKS):
            fleet.send("late", index)
        fleet.start("--without-mingle", number=2)
        for victim in range(2):
            fleet.wait_for(40 * (victim + 1), 30)
            fleet.kill(victim)
            fleet.launch("--without-mingle")
        until(lambda: {start.index for start in fleet.starts()} == set(range(TASKS)), 60, "every task being run")
        assert_never_over(fleet.permits(), RATE)
        ran = Counter(start.index for start in fleet.starts())
        assert sum(times - 1 for times in ran.values()) <= 4, "what the two processes of each were running"
        assert not fleet.parking_lots().lots("tests.apps.fleet.late")


@pytest.mark.slow
@pytest.mark.parametrize("throttle", ["retry", "wait"])
def test_new_rates_while_the_store_is_being_asked(
    server: EmbeddedServer, store: redis.Redis, tmp_path: Path, throttle: str
) -> None:
    name, limiter = f"tests.apps.fleet.{throttle}", Limiter.from_url(server.url)
    with far_away(server, AWAY) as address, Fleet(server, tmp_path, rate="20/s", ratelimit_url=address) as fleet:
        fleet.start(number=2)
        for index in range(300):
            fleet.send(throttle, index)
        new_rates(limiter, name, (20, RATE), pause=0.3)
        fleet.wait_for(300, 20)
        nothing_is_left(fleet, store)
        assert sorted(start.index for start in fleet.starts()) == list(range(300))
        assert_never_over(fleet.permits(), 100)


@pytest.mark.slow
def test_answers_that_are_late_or_lost(server: EmbeddedServer, store: redis.Redis, tmp_path: Path) -> None:
    """A store that stops answering, with questions on their way, and is back."""
    with relay(server) as between:
        between.seconds = AWAY
        with Fleet(server, tmp_path, rate=f"{RATE}/s", ratelimit_url=between.url) as fleet:
            for index in range(TASKS):
                fleet.send("retry", index)
            fleet.start(number=2)
            for number in (50, 100, 150):
                fleet.wait_for(number, 40)
                between.seconds = 2.0  # longer than a worker waits
                time.sleep(1.5)
                between.seconds = AWAY
            fleet.wait_for(TASKS, 60)
            nothing_is_left(fleet, store)
            assert sorted(start.index for start in fleet.starts()) == list(range(TASKS))
            assert_never_over(fleet.permits(), RATE)
