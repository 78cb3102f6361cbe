"""A task whose upstream refuses its call goes back as it came, and its limit is paused for the fleet."""

from __future__ import annotations

import json
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import chain, chord, group
from celery.exceptions import TaskRevokedError

from benchmarks import records
from celery_ratelimit import Limiter
from celery_ratelimit.testing import EmbeddedServer, embedded_server
from tests.fleet_of import Fleet, assert_never_over, errors, until
from tests.rabbitmq import Broker

#: Seconds by which a permit may be taken ahead.
AHEAD = 0.1
SETTINGS = {
    "ratelimit_tasks": {"unaware": "50/s"},
    "ratelimit_upstream_errors": {"tests.apps.upstream.TooMany": "tests.apps.upstream.read_seconds"},
}


def upstream_fleet(server: EmbeddedServer, directory: Path, app: str = "tests.apps.upstream", **options: Any) -> Fleet:
    return Fleet(server, directory, app=app, **{"rate": "50/s", **SETTINGS, **options})


def send(fleet: Fleet, task: str, *args: Any, **options: Any) -> Any:
    return fleet.sender.send_task(task, args, **options)


def calls(fleet: Fleet) -> list[records.Start]:
    return records.read(fleet.directory / "calls")


def nothing_is_left(fleet: Fleet, store: redis.Redis) -> None:
    until(lambda: not store.hlen("unacked"), 10, "every message being acknowledged")
    assert not store.exists("celery", "celery.throttled")
    assert not store.keys("ratelimit:*:payloads@*")
    for index in range(len(fleet.workers)):
        assert errors(fleet.log(index)) == []
        assert "Traceback" not in fleet.log(index)


POOLS = [
    ("-c", "2"),
    ("-P", "threads", "-c", "2"),
    ("-P", "gevent", "-c", "4"),
    pytest.param(("-P", "eventlet", "-c", "4"), marks=pytest.mark.slow),
    pytest.param(("-P", "solo"), marks=pytest.mark.slow),
]


@pytest.mark.parametrize("task", ["early", "late"])
@pytest.mark.parametrize("pool", POOLS)
def test_a_task_goes_back_as_it_came(
    server: EmbeddedServer, store: redis.Redis, tmp_path: Path, pool: tuple[str, ...], task: str
) -> None:
    options = {"broker_transport_options": {"max_connections": 100}} if "-P" in pool else {}
    with upstream_fleet(server, tmp_path, **options) as fleet:
        fleet.start(*pool, number=2)
        results = [
            send(fleet, task, index, 2 * (index % 5 == 0), 0.3, priority=index % 2, expires=600) for index in range(30)
        ]
        assert [result.get(timeout=60) for result in results] == [[index, 0] for index in range(30)]
        assert Counter(start.index for start in fleet.starts()) == dict.fromkeys(range(30), 1), "each is done once"
        assert Counter(each.index for each in calls(fleet))[0] == 3
        for result in results:
            told = [json.loads(line) for line in (tmp_path / f"{result.id}.told").read_text().splitlines()]
            assert all(each == told[0] for each in told), "law 5"
        assert not (tmp_path / "hooks").exists(), "neither failed nor retried"
        nothing_is_left(fleet, store)
        assert_never_over(fleet.permits(), 50)


def test_a_task_whose_upstream_pauses_another_key_waits_for_the_pause(
    server: EmbeddedServer, store: redis.Redis, tmp_path: Path
) -> None:
    with upstream_fleet(server, tmp_path) as fleet:
        fleet.start()
        assert send(fleet, "elsewhere", 0, 1, 2.0).get(timeout=30) == [0, 0]
        first, second = sorted(each.at for each in calls(fleet))
        assert second - first > 1.8
        nothing_is_left(fleet, store)


@pytest.mark.parametrize(("task", "done"), [("newest", 1), ("oldest", 0)])
def test_a_refused_task_is_coalesced_with_an_equal_one_that_waits(
    server: EmbeddedServer, store: redis.Redis, tmp_path: Path, task: str, done: int
) -> None:
    with upstream_fleet(server, tmp_path) as fleet:
        fleet.start(number=2)
        first = send(fleet, task, 0, 1, 3.0)
        until(lambda: [lot.parked for lot in fleet.parking_lots().lots()] == [1], 20, "parking of the refused task")
        second = send(fleet, task, 1, 1, 3.0)
        results = [first, second]
        assert results[done].get(timeout=30)[1] == 0
        with pytest.raises(TaskRevokedError):
            results[1 - done].get(timeout=30)
        assert [start.index for start in fleet.starts()] == [done]
        nothing_is_left(fleet, store)


@pytest.mark.slow
@pytest.mark.parametrize("task", ["early", "late", "waiting"])
@pytest.mark.parametrize("seconds", [0.3, 1.5])
def test_on_rabbitmq(
    server: EmbeddedServer, store: redis.Redis, broker: Broker, tmp_path: Path, task: str, seconds: float
) -> None:
    with upstream_fleet(server, tmp_path, broker=broker.url) as fleet:
        fleet.start(number=2)
        results = [send(fleet, task, index, index % 5 == 0, seconds) for index in range(20)]
        assert [result.get(timeout=60) for result in results] == [[index, 0] for index in range(20)]
        assert Counter(start.index for start in fleet.starts()) == dict.fromkeys(range(20), 1)
        assert not (tmp_path / "hooks").exists()
        until(lambda: broker.ready("celery", "celery.throttled") == 0, 10, "every message being acknowledged")


def test_no_call_starts_while_the_limit_is_paused(
    server: EmbeddedServer, store: redis.Redis, limiter: Limiter, tmp_path: Path
) -> None:
    with upstream_fleet(server, tmp_path) as fleet:
        fleet.start(number=2)
        for index in range(100):
            send(fleet, "late", index, index == 20, 2.0)
        fleet.wait_for(100, 30)
        (change,) = [each for each in limiter.history("upstream", force=True) if each.verb == "throttled"]
        assert (change.by, change.reason[:8]) == ("429 of task late", "of task ")
        permits = sorted(fleet.permits(), key=lambda permit: permit.at)
        paused = [permit.at - change.at for permit in permits if change.at < permit.at < change.at + 2]
        assert all(at <= AHEAD for at in paused), "by the store's clock"
        again = [permit.index for permit in permits if permit.at >= change.at + 2]
        before = again[: again.index(20)]
        assert all(index < 20 for index in before), (
            "it goes back to the head: before it are tasks that were sent before"
        )
        assert_never_over(permits, 50)


def test_what_follows_a_task_follows_it_once(server: EmbeddedServer, store: redis.Redis, tmp_path: Path) -> None:
    with upstream_fleet(server, tmp_path) as fleet:
        fleet.start(number=2)
        early, late = [
            lambda *args, name=name: fleet.sender.signature(name, args=args, immutable=True)
            for name in ("early", "late")
        ]
        added = fleet.sender.signature("added")
        result = chord(group(early(index, 1, 0.2) for index in range(3)), added).apply_async()
        follows = chain(late(10, 1, 0.2), early(11, 1, 0.2), late(12, 1, 0.2)).apply_async()
        assert result.get(timeout=60) == 3
        assert follows.get(timeout=60) == [12, 0]
        assert sorted(start.index for start in fleet.starts()) == [0, 1, 2, 10, 11, 12]
        nothing_is_left(fleet, store)


@pytest.mark.parametrize("app", ["tests.apps.upstream", "tests.apps.upstream_no_gate"])
def test_a_task_fails_with_the_upstreams_error_in_the_end(
    server: EmbeddedServer, store: redis.Redis, tmp_path: Path, app: str
) -> None:
    with upstream_fleet(server, tmp_path, app) as fleet:
        fleet.start()
        with pytest.raises(Exception, match=r"0\.05") as raised:
            send(fleet, "twice", 0, 9, 0.05).get(timeout=30)
        assert type(raised.value).__name__ == "TooMany"
        assert send(fleet, "twice", 1, 2, 0.05).get(timeout=30) == [1, 0]
        assert Counter(each.index for each in calls(fleet)) == {0: 3, 1: 3}


@pytest.mark.parametrize("task", ["declared", "unaware"])
def test_declared_errors(server: EmbeddedServer, store: redis.Redis, tmp_path: Path, task: str) -> None:
    with upstream_fleet(server, tmp_path) as fleet:
        fleet.start()
        answer = [0, 0] if task == "unaware" else 0
        assert send(fleet, task, 0, 3, 0.1).get(timeout=30) == answer
        assert len(calls(fleet)) == 4
        nothing_is_left(fleet, store)


@pytest.mark.parametrize(
    ("task", "args", "answer"),
    [
        ("waiting", (2, 0.2), [0, 0]),
        ("fair", (2, 0.2), [0, 0]),
        ("several", (2, 0.2, "two"), [0, 0]),
        ("dropped", (1, 0.2), None),
        ("impatient", (1, 0.2), [0, 0]),
        ("impatient", (1, 30), None),
    ],
)
def test_by_the_options_of_the_task(
    server: EmbeddedServer, store: redis.Redis, tmp_path: Path, task: str, args: tuple[Any, ...], answer: Any
) -> None:
    with upstream_fleet(server, tmp_path) as fleet:
        fleet.start()
        result = send(fleet, task, 0, *args)
        if answer is None:
            with pytest.raises(TaskRevokedError):
                result.get(timeout=30)
        else:
            assert result.get(timeout=30) == answer
        nothing_is_left(fleet, store)
        until(lambda: not store.zcount("ratelimit:v1:{seats}::leases", "(0", "+inf"), 10, "the end of its leases")


@pytest.mark.parametrize("task", ["early", "late"])
def test_a_task_is_not_lost_while_the_store_is(
    server: EmbeddedServer, store: redis.Redis, tmp_path: Path, task: str
) -> None:
    with embedded_server() as limits, upstream_fleet(server, tmp_path, ratelimit_url=limits.url) as fleet:
        fleet.start()
        assert send(fleet, task, 0, 0, 0.1).get(timeout=30) == [0, 0]
        result = send(fleet, f"slow_{task}", 1, 1, 0.1)
        until(lambda: len(calls(fleet)) == 2, 10, "its call")
        limits.kill()
        until(lambda: "sent back" in fleet.log(), 20, "its return")
        limits.start()
        assert result.get(timeout=60) == [1, 0]


def test_a_killed_worker_loses_no_task_whose_call_was_refused(
    server: EmbeddedServer, store: redis.Redis, broker: Broker, tmp_path: Path
) -> None:
    """On RabbitMQ: kombu's Redis transport loses what it has popped, and not yet noted, when it is killed."""
    with upstream_fleet(server, tmp_path, broker=broker.url) as fleet:
        fleet.start(number=2)
        results = [send(fleet, "late", index, index % 3 == 0, 0.1) for index in range(90)]
        for index in (0, 2):
            fleet.wait_for(20 + 20 * index, 30)
            fleet.kill(index)
            fleet.launch()
        assert [result.get(timeout=120) for result in results] == [[index, 0] for index in range(90)]


@pytest.mark.parametrize("task", ["early", "late"])
def test_a_task_that_waits_in_a_worker_outlives_it_if_it_is_stopped(
    server: EmbeddedServer, store: redis.Redis, tmp_path: Path, task: str
) -> None:
    with upstream_fleet(server, tmp_path) as fleet:
        fleet.start()
        result = send(fleet, task, 0, 1, 0.9)
        until(lambda: "waits in this worker" in fleet.log(), 20, "its wait")
        fleet.workers[0].send_signal(signal.SIGTERM)
        until(lambda: fleet.workers[0].poll() is not None, 20, "the worker's end")
        assert not fleet.started()
        fleet.workers.clear()
        fleet.start()
        assert result.get(timeout=60) == [0, 0]
        nothing_is_left(fleet, store)
