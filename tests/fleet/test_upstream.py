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
from celery_ratelimit.testing import embedded_server
from tests.fleet_of import Fleet, NewFleet, assert_never_over, errors, until
from tests.rabbitmq import Broker

#: Seconds by which a permit may be taken ahead.
AHEAD = 0.1
SETTINGS = {
    "ratelimit_tasks": {"unaware": "50/s"},
    "ratelimit_upstream_errors": {"tests.apps.upstream.TooMany": "tests.apps.upstream.read_seconds"},
}
#: Acknowledged before and after they run.
BOTH = ("early", "late")


def upstream_fleet(new_fleet: NewFleet, app: str = "tests.apps.upstream", **options: Any) -> Fleet:
    return new_fleet(app=app, prefix="", rate="50/s", **SETTINGS, **options)


def calls(fleet: Fleet) -> list[records.Start]:
    return records.read(fleet.directory / "calls")


def nothing_is_left(fleet: Fleet, store: redis.Redis) -> None:
    until(lambda: not store.hlen("unacked"), 10, "every message being acknowledged")
    assert not store.exists("celery", "celery.throttled")
    assert not store.keys("ratelimit:*:payloads@*")
    for index in range(len(fleet.workers)):
        assert errors(fleet.log(index)) == []
        assert "Traceback" not in fleet.log(index)


@pytest.mark.parametrize(
    "pool",
    [
        ("-c", "2"),
        ("-P", "threads", "-c", "2"),
        ("-P", "gevent", "-c", "4"),
        pytest.param(("-P", "eventlet", "-c", "4"), marks=pytest.mark.slow),
        pytest.param(("-P", "solo"), marks=pytest.mark.slow),
    ],
)
def test_a_task_goes_back_as_it_came(
    new_fleet: NewFleet, store: redis.Redis, tmp_path: Path, pool: tuple[str, ...]
) -> None:
    with upstream_fleet(new_fleet, broker_transport_options={"max_connections": 100}) as fleet:
        fleet.start(*pool, number=2)
        results = [
            fleet.send(BOTH[index % 2], index, 2 * (index % 5 == 0), 0.3, priority=index % 3, expires=600)
            for index in range(40)
        ]
        assert [result.get(timeout=60) for result in results] == [[index, 0] for index in range(40)]
        assert Counter(start.index for start in fleet.starts()) == dict.fromkeys(range(40), 1), "each is done once"
        called = Counter(each.index for each in calls(fleet))
        assert (called[0], called[5]) == (3, 3)
        for result in results:
            told = [json.loads(line) for line in (tmp_path / f"{result.id}.told").read_text().splitlines()]
            assert all(each == told[0] for each in told), "law 5"
        assert not (tmp_path / "hooks").exists(), "neither failed nor retried"
        nothing_is_left(fleet, store)
        assert_never_over(fleet.permits(), 50)


def test_a_refused_task_is_coalesced_with_an_equal_one_that_waits(new_fleet: NewFleet, store: redis.Redis) -> None:
    with upstream_fleet(new_fleet) as fleet:
        fleet.start(number=2)
        for task, index, done in (("newest", 0, 1), ("oldest", 2, 0)):
            results = fleet.send_each(task, [index], 1, 3.0)
            until(lambda: [lot.parked for lot in fleet.parking_lots().lots()] == [1], 20, "parking of the refused task")
            results += fleet.send_each(task, [index + 1], 1, 3.0)
            assert results[done].get(timeout=30) == [index + done, 0]
            with pytest.raises(TaskRevokedError):
                results[1 - done].get(timeout=30)
        assert [start.index for start in fleet.starts()] == [1, 2]
        nothing_is_left(fleet, store)


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [0.3, 1.5])
def test_on_rabbitmq(new_fleet: NewFleet, broker: Broker, tmp_path: Path, seconds: float) -> None:
    tasks = (*BOTH, "waiting")
    with upstream_fleet(new_fleet, broker=broker.url) as fleet:
        fleet.start(number=2)
        results = [fleet.send(tasks[index % 3], index, index % 5 == 0, seconds) for index in range(45)]
        assert [result.get(timeout=60) for result in results] == [[index, 0] for index in range(45)]
        assert Counter(start.index for start in fleet.starts()) == dict.fromkeys(range(45), 1)
        assert not (tmp_path / "hooks").exists()
        until(lambda: broker.ready("celery", "celery.throttled") == 0, 10, "every message being acknowledged")


def test_no_call_starts_while_the_limit_is_paused(new_fleet: NewFleet, limiter: Limiter) -> None:
    with upstream_fleet(new_fleet) as fleet:
        fleet.start(number=2)
        for index in range(100):
            fleet.send("late", index, index == 20, 2.0)
        fleet.wait_for(100, 30)
        (change,) = [each for each in limiter.history("upstream", force=True) if each.verb == "throttled"]
        assert (change.by, change.reason[:8]) == ("429 of task late", "of task ")
        permits = sorted(fleet.permits(), key=lambda permit: permit.at)
        paused = [permit.at - change.at for permit in permits if change.at < permit.at < change.at + 2]
        assert all(at <= AHEAD for at in paused), "by the store's clock"
        again = [permit.index for permit in permits if permit.at >= change.at + 2]
        before = again[: again.index(20)]
        assert all(index < 20 for index in before), "it goes to the head: before it are tasks that were sent before"
        assert_never_over(permits, 50)


def test_what_follows_a_task_follows_it_once(new_fleet: NewFleet, store: redis.Redis) -> None:
    with upstream_fleet(new_fleet) as fleet:
        fleet.start(number=2)

        def call(name: str, index: int) -> Any:
            return fleet.sender.signature(name, args=(index, 1, 0.2), immutable=True)

        added = fleet.sender.signature("added")
        result = chord(group(call("early", index) for index in range(3)), added).apply_async()
        follows = chain(call("late", 10), call("early", 11), call("late", 12)).apply_async()
        assert result.get(timeout=60) == 3
        assert follows.get(timeout=60) == [12, 0]
        assert sorted(start.index for start in fleet.starts()) == [0, 1, 2, 10, 11, 12]
        nothing_is_left(fleet, store)


@pytest.mark.parametrize("app", ["tests.apps.upstream", "tests.apps.upstream_no_gate"])
def test_a_task_fails_with_the_upstreams_error_in_the_end(new_fleet: NewFleet, app: str) -> None:
    with upstream_fleet(new_fleet, app) as fleet:
        fleet.start()
        with pytest.raises(Exception, match=r"0\.05") as raised:
            fleet.send("twice", 0, 9, 0.05).get(timeout=30)
        assert type(raised.value).__name__ == "TooMany"
        assert fleet.send("twice", 1, 2, 0.05).get(timeout=30) == [1, 0]
        assert Counter(each.index for each in calls(fleet)) == {0: 3, 1: 3}


def test_a_refused_task_ends_by_its_options_and_declared_errors_count_as_refusals(
    new_fleet: NewFleet, store: redis.Redis
) -> None:
    """Each has a limit of its own; None: the task is dropped."""
    ends: list[tuple[str, tuple[Any, ...], Any]] = [
        ("waiting", (2, 0.2), [0, 0]),
        ("fair", (2, 0.2), [1, 0]),
        ("several", (2, 0.2, "two"), [2, 0]),
        ("dropped", (1, 0.2), None),
        ("impatient", (1, 0.2), [4, 0]),
        ("impatient", (1, 30), None),
        ("declared", (3, 0.1), 6),
        ("unaware", (3, 0.1), [7, 0]),
        ("elsewhere", (1, 2.0), [8, 0]),
    ]
    with upstream_fleet(new_fleet) as fleet:
        fleet.start()
        for index, (task, args, answer) in enumerate(ends):
            result = fleet.send(task, index, *args)
            if answer is None:
                with pytest.raises(TaskRevokedError):
                    result.get(timeout=30)
            else:
                assert result.get(timeout=30) == answer
        called = Counter(each.index for each in calls(fleet))
        assert (called[6], called[7]) == (4, 4)
        first, second = sorted(each.at for each in calls(fleet) if each.index == 8)
        assert second - first > 1.8, "the pause of the key that it has named"
        nothing_is_left(fleet, store)
        until(lambda: not store.zcount("ratelimit:v1:{seats}::leases", "(0", "+inf"), 10, "the end of its leases")


def test_refused_tasks_are_not_lost_while_the_store_is(new_fleet: NewFleet) -> None:
    with embedded_server() as limits, upstream_fleet(new_fleet, ratelimit_url=limits.url) as fleet:
        fleet.start()
        assert [fleet.send(task, 0, 0, 0.1).get(timeout=30) for task in BOTH] == [[0, 0]] * 2
        results = [fleet.send(f"slow_{task}", 1 + index, 1, 0.1) for index, task in enumerate(BOTH)]
        until(lambda: len(calls(fleet)) == 4, 10, "their calls")
        limits.kill()
        until(lambda: fleet.log().count("sent back") >= 2, 20, "their return")
        limits.start()
        assert [result.get(timeout=60) for result in results] == [[1, 0], [2, 0]]


def test_a_killed_worker_loses_no_task_whose_call_was_refused(new_fleet: NewFleet, broker: Broker) -> None:
    """On RabbitMQ: kombu's Redis transport loses what it has popped, and not yet noted, when it is killed."""
    with upstream_fleet(new_fleet, broker=broker.url) as fleet:
        fleet.start(number=2)
        results = [fleet.send("late", index, index % 3 == 0, 0.1) for index in range(90)]
        for index in (0, 2):
            fleet.wait_for(20 + 20 * index, 30)
            fleet.kill(index)
            fleet.launch()
        assert [result.get(timeout=120) for result in results] == [[index, 0] for index in range(90)]


@pytest.mark.parametrize("task", BOTH)
def test_a_refused_task_that_waits_in_a_worker_outlives_its_stop(
    new_fleet: NewFleet, store: redis.Redis, task: str
) -> None:
    with upstream_fleet(new_fleet) as fleet:
        fleet.start()
        result = fleet.send(task, 0, 1, 0.9)
        until(lambda: "waits in this worker" in fleet.log(), 20, "its wait")
        fleet.workers[0].send_signal(signal.SIGTERM)
        until(lambda: fleet.workers[0].poll() is not None, 20, "the worker's end")
        assert not fleet.started()
        fleet.workers.clear()
        fleet.start()
        assert result.get(timeout=60) == [0, 0]
        nothing_is_left(fleet, store)
