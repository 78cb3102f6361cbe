"""Every algorithm on a real fleet: tasks with windows, logs, places and estimates."""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import redis

from benchmarks.measures import worst_second
from benchmarks.records import Start
from celery_ratelimit import Concurrency, Limit, Limiter, Throttled
from celery_ratelimit.store.script import load_source
from celery_ratelimit.testing import EmbeddedServer, embedded_server
from tests.fleet_of import AGAIN, Fleet, assert_never_over, assert_over, until

#: Permits of the concurrency limit. A worker releases a lease when the task has ended, never earlier.
PLACES = 3


def most_at_once(notes: Sequence[Start]) -> int:
    """The most bodies that ran at the same time."""
    running = most = 0
    for note in sorted(notes):
        running += 1 if note.index >= 0 else -1
        most = max(most, running)
    return most


def ended(fleet: Fleet) -> int:
    return sum(note.index < 0 for note in fleet.starts())


@pytest.mark.parametrize(("task", "pool"), [("place", "threads"), ("patient_place", "prefork")])
def test_running_tasks_never_exceed_the_concurrency_limit(
    server: EmbeddedServer, store: redis.Redis, tmp_path: Path, task: str, pool: str
) -> None:
    with Fleet(server, tmp_path) as fleet:
        fleet.start("-P", pool, "-c", "3", number=2)
        for index in range(40):
            fleet.send(task, index, 0.2)
        until(lambda: ended(fleet) == 40, 30, "the end of every task")
        notes = fleet.starts()
        assert sorted(note.index for note in notes if note.index >= 0) == list(range(40))
        assert most_at_once(notes) == PLACES
        until(lambda: not store.zcount("ratelimit:v1:{places}::leases", 1, "+inf"), 5, "the return of every place")
        assert "Traceback" not in fleet.log(0) + fleet.log(1)


#: Scripts that acquire and release leases, or return parked tasks.
SCRIPTS = {
    hashlib.sha1(load_source(verb).encode()).hexdigest(): verb
    for verb in ("acquire", "acquire_in_order", "release_and_acquire", "release")
}


@pytest.mark.parametrize("task", ["place", "patient_place"])
def test_waiting_for_a_lease_costs_at_most_two_and_a_half_scripts_per_task(
    server: EmbeddedServer, store: redis.Redis, tmp_path: Path, task: str
) -> None:
    """It was five scripts before leases were handed over: each waiting queue polled four times a second."""
    verbs: Counter[str] = Counter()
    with Fleet(server, tmp_path) as fleet, store.monitor() as monitor:
        for index in range(60):
            fleet.send(task, index, 0.2)
        fleet.start("-c", "4", number=2)
        while ended(fleet) < 60:
            words = monitor.next_command()["command"].split()
            if words[0].upper() == "EVALSHA":
                verbs[SCRIPTS.get(words[1].lower(), "")] += 1
        assert most_at_once(fleet.starts()) == PLACES
    assert verbs["release_and_acquire"] > 20
    assert sum(count for verb, count in verbs.items() if verb) <= 60 * 2.5, verbs


def test_worker_that_waits_for_a_lease_polls_once_a_second_and_is_notified(
    server: EmbeddedServer, store: redis.Redis, tmp_path: Path
) -> None:
    limiter = Limiter.from_url(server.url)
    places = Concurrency(PLACES, name="places", lease=30)
    mine = [limiter.acquire(places) for _ in range(PLACES)]
    waits = "ratelimit:v1:{places}::leases"
    with Fleet(server, tmp_path) as fleet:
        fleet.start("-c", "2")
        for index in range(12):
            fleet.send("patient_place", index, 0)
        until(lambda: any(each.startswith("\1") for each in store.zrange(waits, 0, -1)), 20, "its waiting")
        asks, until_then = 0, time.monotonic() + 4
        with store.monitor() as monitor:
            while time.monotonic() < until_then:
                words = monitor.next_command()["command"].split()
                asks += words[0].upper() == "EVALSHA" and words[1].lower() in SCRIPTS
        assert asks <= 6, "it was four a second"
        assert limiter.release(mine.pop())
        until(lambda: ended(fleet) == 12, 20, "all, one after the other")


@pytest.mark.slow
def test_a_failed_task_releases_its_place_and_a_long_one_keeps_it_beyond_the_lease(
    server: EmbeddedServer, store: redis.Redis, tmp_path: Path
) -> None:
    with Fleet(server, tmp_path) as fleet:
        fleet.start("-c", "4")
        for index in range(12):
            fleet.send("broken_place", index)
        fleet.wait_for(12, 10)
        until(lambda: not store.zcount("ratelimit:v1:{places}::leases", 1, "+inf"), 5, "the return of every place")
        for index in range(20, 26):
            fleet.send("patient_place", index, 2.5)  # the lease is one second
        until(lambda: ended(fleet) == 6, 20, "the end of every task")
        assert most_at_once([note for note in fleet.starts() if not 0 <= note.index < 12]) == PLACES


def test_killed_workers_leases_expire(server: EmbeddedServer, store: redis.Redis, tmp_path: Path) -> None:
    with Fleet(server, tmp_path) as fleet:
        fleet.start("-c", "3")
        for index in range(3):
            fleet.send("patient_place", index, 60)
        fleet.wait_for(3, 10)
        fleet.kill(0)
        fleet.start("-c", "3")
        fleet.send("patient_place", 10, 0)
        fleet.wait_for(4, 10)
        leases = [lease for _, lease in store.zrange("ratelimit:v1:{places}::leases", 0, -1, withscores=True)]
        assert len([lease for lease in leases if lease > 0]) <= PLACES


@pytest.mark.slow
def test_each_worker_has_its_share_of_leases_while_the_store_is_down(
    server: EmbeddedServer, store: redis.Redis, tmp_path: Path
) -> None:
    with embedded_server(persist=True) as limits_store:
        conf = {"ratelimit_url": limits_store.url, "ratelimit_on_store_error": "local"}
        with Fleet(server, tmp_path, **conf) as fleet:
            fleet.start("-c", "3", "-l", "DEBUG", number=2)
            fleet.wait_until_introduced()
            limits_store.kill()
            for index in range(12):
                fleet.send("patient_place", index, 0.3)
            until(lambda: ended(fleet) >= 6, 20, "the end of some tasks")
            assert most_at_once(fleet.starts()) <= 2  # three places, two workers: one each
            limits_store.start()
            until(lambda: ended(fleet) == 12, 20, "the end of every task")
            assert most_at_once(fleet.starts()) <= PLACES + 2  # and the tasks that the workers granted themselves


def test_full_leaky_bucket_refuses_tasks_at_once(server: EmbeddedServer, store: redis.Redis, tmp_path: Path) -> None:
    with Fleet(server, tmp_path) as fleet:
        name = "tests.apps.fleet.leaky"
        leaky = Limit("10/s", algorithm="leaky_bucket", capacity=5, name=name)
        limiter = Limiter.from_url(server.url, quotas={name: leaky})
        limiter.set_rate(name, replace(leaky, rate="1/h"))
        results = [fleet.send("leaky", index) for index in range(30)]
        fleet.start()
        until(lambda: sum(result.ready() for result in results) == 25, 20, "one having run, and 24 being refused")
        limiter.unset_rate(name)
        outcomes = [result.get(timeout=40, propagate=False) for result in results]
        assert sum(isinstance(outcome, Throttled) for outcome in outcomes) == 24
        assert sorted(outcome for outcome in outcomes if isinstance(outcome, int)) == list(range(6))
        assert_never_over(fleet.permits(), 10)


def test_windows_hold_on_a_fleet(server: EmbeddedServer, store: redis.Redis, tmp_path: Path) -> None:
    most = {"sliding_log": 20, "fixed_window": 40, "sliding_window": 40, "warming": 21}
    with Fleet(server, tmp_path, rate="20/s") as fleet:
        for index in range(60 * len(most)):
            fleet.send(list(most)[index % len(most)], index)
        fleet.start(number=2)
        starts = fleet.wait_for(60 * len(most), 30)
        assert sorted(start.index for start in starts) == list(range(60 * len(most)))
        for number, (task, bound) in enumerate(most.items()):
            permits = [permit for permit in fleet.permits() if permit.index % len(most) == number]
            assert worst_second(permits) <= bound, task
        assert fleet.sent_back() <= 60 * len(most) * AGAIN


def test_limits_of_three_algorithms_hold_together(server: EmbeddedServer, store: redis.Redis, tmp_path: Path) -> None:
    with Fleet(server, tmp_path, rate="10/s") as fleet:
        fleet.start(number=2)
        for index in range(40):
            fleet.send("mixed", index)
        fleet.wait_for(40, 20)
        assert worst_second(fleet.permits()) <= 10


def test_a_task_settles_its_cost_once_and_by_the_names_of_its_limits(
    server: EmbeddedServer, store: redis.Redis, tmp_path: Path
) -> None:
    limit = Limit("10/s", burst=100, name="tests.apps.fleet.settled")
    limiter = Limiter.from_url(server.url)
    with Fleet(server, tmp_path) as fleet:
        fleet.start()
        assert fleet.send("settled", 0, 50, 10).get(timeout=10) == [True, False]
        assert limiter.peek(limit).remaining >= 89
        assert fleet.send("settled", 1, 10, 60).get(timeout=10) == [True, False]
        assert limiter.peek(limit).remaining <= 60
        wrong, neither, right = fleet.send("settled_by_name", 0, 50, 90).get(timeout=10)
    assert "no limit 'tokes'" in wrong
    assert "(limits: tokens, calls)" in wrong
    assert "task 'tests.apps.fleet.settled_by_name': settle takes either permits" in neither
    assert right is True
    assert limiter.peek(Limit("10/s", burst=100, name="tokens")).reset_after > 5.5, "more than the 50 that were charged"


def test_keys_with_rates_from_a_callable_keep_them_despite_its_errors(
    server: EmbeddedServer, store: redis.Redis, tmp_path: Path
) -> None:
    with Fleet(server, tmp_path) as fleet:
        for index in range(60):
            fleet.send("by_plan", index, ("paid", "lost", "none")[index % 3])
        fleet.start(number=2)
        fleet.wait_for(60, 20)
        permits = fleet.permits()
    assert sorted(permit.index for permit in permits) == list(range(60))
    of_customers = [[permit for permit in permits if permit.index % 3 == number] for number in range(3)]
    for own, rate in zip(of_customers, (20, 5, 5), strict=True):
        assert_never_over(own, rate)
    assert_over(of_customers[0], 5)
