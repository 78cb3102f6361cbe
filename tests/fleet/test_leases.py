"""Concurrency limits: never more running than there are leases, whatever happens to workers and connections.

A lease belongs to one run of a task: a copy that is delivered meanwhile waits for its own lease.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest
import redis

from benchmarks import records
from celery_ratelimit import Concurrency, Limiter
from celery_ratelimit.store.script import load_source
from celery_ratelimit.testing import EmbeddedServer
from tests.far_away import relay
from tests.fleet_of import Fleet, NewFleet, until

#: Permits of the concurrency limit. A worker releases a lease when the task has ended, never earlier.
PLACES = 3
#: Scripts that acquire and release leases, or return parked tasks.
SCRIPTS = {
    hashlib.sha1(load_source(verb).encode()).hexdigest(): verb
    for verb in ("acquire", "acquire_in_order", "release_and_acquire", "release")
}


def ended(fleet: Fleet) -> int:
    return sum(note.index < 0 for note in fleet.starts())


@pytest.mark.parametrize(
    ("task", "pool"),
    [
        ("place", "prefork"),
        ("patient_place", "prefork"),
        ("place", "gevent"),
        pytest.param("place", "threads", marks=pytest.mark.slow),
        pytest.param("patient_place", "gevent", marks=pytest.mark.slow),
    ],
)
def test_running_tasks_never_exceed_the_limit_and_waiting_ones_take_few_scripts(
    new_fleet: NewFleet, store: redis.Redis, task: str, pool: str
) -> None:
    """Five scripts each it were before leases were handed over: each waiting queue polled four times a second."""
    verbs: Counter[str] = Counter()
    conf = {"broker_transport_options": {"max_connections": 100}}
    with new_fleet(**conf) as fleet, store.monitor() as monitor:
        fleet.send_each(task, range(60), 0.2)
        fleet.start("-P", pool, "-c", "4", number=2)
        while fleet.started() < 2 * 60:  # a note of each start, and of each end
            words = monitor.next_command()["command"].split()
            if words[0].upper() == "EVALSHA":
                verbs[SCRIPTS.get(words[1].lower(), "")] += 1
        notes = sorted(fleet.starts())
        assert sorted(note.index for note in notes if note.index >= 0) == list(range(60))
        assert most_held([(note.at, 1 if note.index >= 0 else -1) for note in notes]) == PLACES
        assert verbs["release_and_acquire"] > 0
        if pool == "prefork":
            assert sum(count for verb, count in verbs.items() if verb) <= 60 * 2.5, verbs
        until(lambda: not store.zcount("ratelimit:v1:{places}::leases", 1, "+inf"), 5, "the return of every place")
        until(lambda: not store.hlen("unacked"), 10, "every message being acknowledged")
        assert not store.exists("celery", "celery.throttled")
        assert not store.keys("ratelimit:*:payloads@*")
        assert "Traceback" not in fleet.log(0) + fleet.log(1)


def most_held(changes: Iterable[tuple[float, int]]) -> int:
    """The most permits at once."""
    held = most = 0
    for _, change in sorted(changes):
        held += change
        most = max(most, held)
    return most


def test_worker_that_waits_for_a_lease_polls_once_a_second_and_is_notified(
    new_fleet: NewFleet, limiter: Limiter, store: redis.Redis
) -> None:
    places = Concurrency(PLACES, name="places", lease=30)
    mine = [limiter.acquire(places) for _ in range(PLACES)]
    waits = "ratelimit:v1:{places}::leases"
    with new_fleet() as fleet:
        fleet.start("-c", "2")
        fleet.send_each("patient_place", range(12), 0)
        until(lambda: any(each.startswith("\1") for each in store.zrange(waits, 0, -1)), 20, "its waiting")
        asks, until_then = 0, time.monotonic() + 4
        with store.monitor() as monitor:
            while time.monotonic() < until_then:
                words = monitor.next_command()["command"].split()
                asks += words[0].upper() == "EVALSHA" and words[1].lower() in SCRIPTS
        assert asks <= 6, "it was four a second"
        assert limiter.release(mine.pop())
        until(lambda: ended(fleet) == 12, 20, "all, one after the other")


def test_running_tasks_keep_their_leases_until_their_worker_is_killed(new_fleet: NewFleet, store: redis.Redis) -> None:
    with new_fleet() as fleet:
        fleet.start("-c", "4")
        fleet.send_each("patient_place", range(3), 60)
        fleet.wait_for(3, 10)
        fleet.send("patient_place", 3, 0)
        time.sleep(2.5)
        assert fleet.started() == 3, "a lease is for one second, and renewed"
        fleet.kill(0)
        fleet.start("-c", "3")
        fleet.send("patient_place", 10, 0)
        until(lambda: 10 in {start.index for start in fleet.starts()}, 10, "the end of the leases")
        leases = [lease for _, lease in store.zrange("ratelimit:v1:{places}::leases", 0, -1, withscores=True)]
        assert len([lease for lease in leases if lease > 0]) <= PLACES


#: Of ``Concurrency(4)``; what each task holds, by its index.
LIMIT = 4
COSTS = [1, 3, 1, 1, 4, 1, 2, 1, 1, 3, 1, 1, 4, 2, 1, 1]


@pytest.mark.parametrize(("task", "pool"), [("train", "prefork"), ("patient_train", "threads")])
def test_tasks_never_hold_more_permits_than_the_limit(
    new_fleet: NewFleet, store: redis.Redis, task: str, pool: str
) -> None:
    with new_fleet() as fleet:
        fleet.start("-P", pool, "-c", "3", number=2)
        for index, cost in enumerate(COSTS):
            fleet.send(task, index, 0.2, cost)
        until(lambda: fleet.started() == 2 * len(COSTS), 40, "the end of every task")
        assert sorted(each.index for each in fleet.starts() if each.index >= 0) == list(range(len(COSTS)))
        held = [(each.at, COSTS[each.index] if each.index >= 0 else -COSTS[-1 - each.index]) for each in fleet.starts()]
        assert most_held(held) == LIMIT
        until(lambda: not store.zcount("ratelimit:v1:{gpus}::leases", 1, "+inf"), 20, "the release of every lease")
        assert store.zscore("ratelimit:v1:{gpus}::leases", "\0+") is None


def test_tasks_of_two_concurrency_limits_do_not_deadlock(new_fleet: NewFleet) -> None:
    """Each takes all permits of both. With permits set aside for one task in each limit, all stood still."""
    with new_fleet() as fleet:
        fleet.start("-P", "threads", "-c", "4", number=2)
        for turn in range(3):
            fleet.send_each("train_in_memory", range(16), 0.05, LIMIT)
            until(lambda turn=turn: fleet.started() == 2 * 16 * (turn + 1), 20, "the end of every task")


#: Of ``Concurrency(2)``, and seconds that each task takes.
LEASES, SECONDS = 2, 1.5


def most_runs_at_once(beats: Iterable[records.Start]) -> int:
    """The most runs that went on at the same time; each from its first beat to its last one."""
    first: dict[tuple[int, int], float] = {}
    last: dict[tuple[int, int], float] = {}
    for beat in beats:
        run = beat.index, beat.status
        first.setdefault(run, beat.at)
        last[run] = beat.at
    return most_held([(at, 1) for at in first.values()] + [(at, -1) for at in last.values()])


@pytest.mark.parametrize(
    ("kind", "pool", "cancels"),
    [
        ("redis", "prefork", True),
        ("rabbitmq", "prefork", False),
        ("redis", "threads", False),
        pytest.param("rabbitmq", "gevent", False, marks=pytest.mark.slow),
    ],
)
def test_concurrency_limit_holds_while_broker_connections_are_lost(
    new_fleet: NewFleet,
    server: EmbeddedServer,
    store: redis.Redis,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    kind: str,
    pool: str,
    cancels: bool,
) -> None:
    conf = {"worker_cancel_long_running_tasks_on_connection_loss": cancels, "ratelimit_url": server.url}
    behind: Any = server
    if kind == "redis":  # kombu hands out anew what is not acknowledged for so long
        conf["broker_transport_options"] = {"visibility_timeout": 2, "unacked_restore_throttle": 1}
    else:
        url = urlsplit(request.getfixturevalue("broker").url)
        behind = SimpleNamespace(port=url.port)
    with relay(behind) as between:
        port = urlsplit(between.url).port
        at = between.url if kind == "redis" else f"amqp://guest:guest@127.0.0.1:{port}{url.path}"
        with new_fleet(broker=at, **conf) as fleet:
            fleet.start("-P", pool, "-c", "2", number=2)
            fleet.send_each("pair", range(6), SECONDS)
            for _ in range(3):
                time.sleep(1.9)
                between.cut()
            until(lambda: len({start.index for start in fleet.starts()}) == 6, 40, "the end of every task")
            assert most_runs_at_once(records.read(tmp_path / "beats")) == LEASES
            until(lambda: not store.zcount("ratelimit:v1:{pair}::leases", 1, "+inf"), 20, "the release of every lease")
