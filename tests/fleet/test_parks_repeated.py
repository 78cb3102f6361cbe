"""A worker gets no reply that tasks are parked: it holds them and parks again, and each runs once."""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from collections.abc import Callable

import pytest
import redis
from celery.result import AsyncResult

from celery_ratelimit.store.script import load_source
from celery_ratelimit.testing import EmbeddedServer, embedded_server
from tests.fleet_of import Fleet, NewFleet, until
from tests.relay import relay_to

RATE = "20/s"
#: Scripts that acquire permits.
ACQUIRES = {hashlib.sha1(load_source(verb).encode()).hexdigest() for verb in ("acquire", "acquire_in_order")}


def repeated(limits: EmbeddedServer) -> int:
    """Messages that were parked more than once."""
    with redis.Redis.from_url(limits.url) as store:
        return sum(b"\0" in field for key in store.keys("*:valid_copy@*") for field in store.hkeys(key))


def send(fleet: Fleet, results: list[AsyncResult], number: int) -> None:
    results.extend([fleet.send("retry", len(results) + index) for index in range(number)])


def check(fleet: Fleet, results: list[AsyncResult], limits: EmbeddedServer) -> None:
    """Each task has run once, and nothing is left that could run."""
    until(lambda: all(result.ready() for result in results), 40, "every end")
    with redis.Redis.from_url(limits.url) as store:
        until(lambda: not store.keys("*:parked@*") + store.keys("*:in_flight@*"), 40, "nothing being parked")
    time.sleep(1.0)  # a copy that is on its way comes, and ends or runs
    ran = Counter(start.index for start in fleet.starts())
    assert {index: times for index, times in ran.items() if times != 1} == {}
    assert ran.keys() == set(range(len(results)))


def until_repeated(limits: EmbeddedServer, trouble: Callable[[int], None]) -> None:
    """Make trouble until it has hit a call that parks tasks."""
    for number in range(20):
        trouble(number)
        if repeated(limits):
            return
    raise AssertionError("no call that parks tasks was hit")


@pytest.mark.parametrize(
    ("pool", "broker_url"),
    [
        ("prefork", "redis"),
        pytest.param("threads", "rabbitmq", marks=pytest.mark.slow),
        pytest.param("solo", "redis", marks=pytest.mark.slow),
    ],
    indirect=["broker_url"],
)
def test_store_that_hangs_during_parking_loses_and_repeats_no_task(
    new_fleet: NewFleet, broker_url: str, pool: str
) -> None:
    with embedded_server() as limits, new_fleet(rate=RATE, broker=broker_url, ratelimit_url=limits.url) as fleet:
        results: list[AsyncResult] = []
        fleet.start("-P", pool, number=2)

        def trouble(number: int) -> None:
            with redis.Redis.from_url(limits.url) as store, store.monitor() as monitor:
                send(fleet, results, 30)
                while not ACQUIRES & set(monitor.next_command()["command"].lower().split()):
                    pass
            time.sleep(0.001 * number)
            limits.freeze()  # before the tasks that have got no permit are parked, or while they are
            time.sleep(3.0)
            limits.thaw()
            until(lambda: all(result.ready() for result in results), 40, "every end")

        until_repeated(limits, trouble)
        check(fleet, results, limits)


def test_task_whose_park_was_unconfirmed_runs_once_in_another_worker(new_fleet: NewFleet, store: redis.Redis) -> None:
    """The tasks are parked, returned, and have run, when the worker that has parked them reaches the store again."""
    with (
        embedded_server() as limits,
        relay_to(limits) as relay,
        new_fleet(rate=RATE, ratelimit_url=relay.url) as fleet,
    ):
        results: list[AsyncResult] = []
        fleet.start()
        fleet.env["TEST_CONF"] = json.dumps({"ratelimit_url": limits.url})
        fleet.start()

        def trouble(number: int) -> None:
            relay.trouble("deaf", after=number % 3, seconds=6.0)
            send(fleet, results, 40)
            until(relay.is_over, 30, "the trouble")
            until(lambda: all(result.ready() for result in results), 40, "every end")

        until_repeated(limits, trouble)
        check(fleet, results, limits)


@pytest.mark.slow
def test_stopped_worker_requeues_unconfirmed_parks(new_fleet: NewFleet, broker_url: str) -> None:
    with (
        embedded_server() as limits,
        relay_to(limits) as relay,
        new_fleet(rate=RATE, broker=broker_url, ratelimit_url=relay.url) as fleet,
    ):
        results: list[AsyncResult] = []
        fleet.start()
        relay.trouble("deaf", after=0, seconds=20.0)
        send(fleet, results, 20)
        until(lambda: "until it is back" in fleet.log(), 20, "the outage")
        fleet.stop()
        until(relay.is_over, 30, "the trouble")
        assert not repeated(limits)
        fleet.start()
        check(fleet, results, limits)
