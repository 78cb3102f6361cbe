"""A lease belongs to one run of a task and is released once."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from celery_ratelimit import Concurrency, StoreUnavailable
from celery_ratelimit.limiter import leases as leases_module
from celery_ratelimit.limiter.leases import LONGEST_PAUSE, RENEWALS, LeaseKeeper, run_id
from celery_ratelimit.limiter.limit_request import LimitRequest
from celery_ratelimit.limiter.script_calls import LeasesToRelease
from tests.unit.worker.gate_bench import Bench

PLACE = LimitRequest(Concurrency(2, name="places"), "places")


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(monkeypatch, processes=8)


def reply_is_lost(bench: Bench) -> Callable[[], None]:
    """Lose the replies of acquire calls from now on, until the result is called."""
    decide = bench.release_and_acquire

    def lose(*args: Any) -> Any:
        decide(*args)
        raise StoreUnavailable("no answer")

    bench.release_and_acquire = lose  # type: ignore[method-assign]
    return lambda: setattr(bench, "release_and_acquire", decide)


def test_redelivered_copy_has_its_own_lease(bench: Bench) -> None:
    task = bench.task("wait", "p1")
    first = bench.receive(task, "task")
    bench.lose_connection()
    second = bench.receive(task, "task")
    assert [first.ends, second.ends] == [["started"], ["started"]]
    assert len(bench.leases_of["p1"]) == 2
    third = bench.receive(task, "task")
    assert third.ends == [], "two run"
    bench.finish()
    assert len(bench.leases_of["p1"]) == 2, "the third run has the lease of the first"
    assert third.ends == ["started"]
    bench.finish()
    bench.finish()
    bench.check_empty()


def test_repeated_acquire_finds_the_lease_of_a_lost_reply(bench: Bench) -> None:
    bench.is_a_move = True  # its master is another server in a moment: the request waits for that
    arrives = reply_is_lost(bench)
    request = bench.receive(bench.task("wait", "p1"))
    assert len(bench.leases_of["p1"]) == 1
    arrives()
    bench.end_outage()
    bench.run(1.0)
    assert request.ends == ["started"]
    assert len(bench.leases_of["p1"]) == 1


@pytest.mark.parametrize("leaves", ["sent back", "lost"])
def test_leaving_request_with_a_lost_reply_releases_its_lease(bench: Bench, leaves: str) -> None:
    arrives = reply_is_lost(bench)
    if leaves == "lost":
        bench.is_a_move = True
    request = bench.receive(bench.task("retry", "p1"))
    arrives()
    if leaves == "lost":
        assert len(bench.leases_of["p1"]) == 1
        bench.lose_connection()
    assert request.ends == [leaves]
    assert not bench.leases_of["p1"]
    bench.check_empty()


def test_run_ids_are_unique() -> None:
    ids = {run_id("task") for _ in range(100)}
    assert len(ids) == 100
    assert all(id.startswith("task#") for id in ids)


class Store:
    """Notes the leases of each release call."""

    def __init__(self) -> None:
        self.released: list[list[str]] = []
        self.broken: set[str] = set()
        self.is_lost = False

    def release(self, ended: Sequence[LeasesToRelease]) -> int:
        self.released.append([each.id for each in ended])
        if self.is_lost:
            raise StoreUnavailable("no answer")
        if any(each.id in self.broken for each in ended):
            raise ZeroDivisionError("at one of them")
        return len(ended)

    def renew(self, leases: Any) -> list[bool]:
        return [True for _ in leases]


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def leases(store: Store) -> Iterator[LeaseKeeper]:
    leases = LeaseKeeper(store)
    yield leases
    store.is_lost, store.broken = False, set()
    leases.close()


def ended(leases: LeaseKeeper, *ids: str) -> None:
    for id in ids:
        leases.begin(id, [PLACE], 0)
        leases.end(id, later=True)


def test_ended_leases_are_released_in_one_round_trip(store: Store, leases: LeaseKeeper) -> None:
    ended(leases, *"abcdefgh")
    leases.release_ended()
    assert store.released == [list("abcdefgh")]
    assert not leases.has_ended


def test_failed_release_is_repeated(store: Store, leases: LeaseKeeper) -> None:
    ended(leases, "a", "b")
    store.is_lost = True
    with pytest.raises(StoreUnavailable):
        leases.release_ended()
    assert leases.has_ended
    store.is_lost, store.released = False, []
    leases.release_ended()
    assert store.released == [["a", "b"]]


def test_one_broken_lease_does_not_block_the_others(store: Store, leases: LeaseKeeper) -> None:
    ended(leases, "a", "b", "c")
    store.broken = {"b"}
    with pytest.raises(ZeroDivisionError):
        leases.release_ended()
    assert [each.id for each in leases.ended([PLACE])] == ["b"]


def test_renewal_interval_follows_the_shortest_held_lease(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses, goes_on = queue.Queue[float](), queue.Queue[bool]()

    class Wakeup(threading.Event):
        """Continues when the test says so."""

        def wait(self, timeout: float | None = None) -> bool:
            assert timeout is not None
            pauses.put(timeout)
            return goes_on.get()

    parts = {"Event": Wakeup, "Thread": threading.Thread, "Lock": threading.Lock}
    monkeypatch.setattr(leases_module, "threading", SimpleNamespace(**parts))
    leases = LeaseKeeper(store)
    leases.begin("long", [PLACE], 0)
    assert pauses.get(timeout=10) == LONGEST_PAUSE
    leases.begin("short", [LimitRequest(Concurrency(2, name="short", lease=0.1), "short")], 0)
    goes_on.put(True)
    assert pauses.get(timeout=10) == pytest.approx(0.1 / RENEWALS)
    leases.end("short")
    goes_on.put(True)
    assert pauses.get(timeout=10) == LONGEST_PAUSE
    leases.end("long")
    goes_on.put(True)


def test_acquire_of_leases_asks_for_all_free_processes(bench: Bench) -> None:
    """The call itself reserves none of them: two leases that are free together are taken by one script."""
    asked_for: list[int] = []
    decide = bench.release_and_acquire

    def note(demands: Any, asking: Any, ended: Any) -> Any:
        asked_for.append(asking.most)
        return decide(demands, asking, ended)

    bench.release_and_acquire = note  # type: ignore[method-assign]
    bench.receive(bench.task("wait", "p1"))
    assert asked_for == [8]
