"""A lease belongs to one run of a task: what a run was granted is its own, and is released once."""

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
    """From now on the store decides, and its answer does not arrive; until the result is called."""
    decide = bench.release_and_acquire

    def lose(*args: Any) -> Any:
        decide(*args)
        raise StoreUnavailable("no answer")

    bench.release_and_acquire = lose  # type: ignore[method-assign]
    return lambda: setattr(bench, "release_and_acquire", decide)


def test_a_copy_that_is_delivered_while_the_first_run_goes_on_has_a_lease_of_its_own(bench: Bench) -> None:
    task = bench.task("wait", "p1")
    first = bench.come(task, "task")
    bench.lose_connection()
    second = bench.come(task, "task")
    assert [first.ends, second.ends] == [["started"], ["started"]]
    assert len(bench.concurrency_leases["p1"]) == 2
    third = bench.come(task, "task")
    assert third.ends == [], "two run"
    bench.finish()
    assert len(bench.concurrency_leases["p1"]) == 2, "the lease of the first run is the third's"
    assert third.ends == ["started"]
    bench.finish()
    bench.finish()
    bench.check_empty()


def test_a_request_whose_reply_was_lost_finds_its_lease_when_it_asks_again(bench: Bench) -> None:
    bench.is_a_move = True  # its master is another server in a moment: the request waits for that
    arrives = reply_is_lost(bench)
    request = bench.come(bench.task("wait", "p1"))
    assert len(bench.concurrency_leases["p1"]) == 1
    arrives()
    bench.dedup_and_acquire()
    bench.run(1.0)
    assert request.ends == ["started"]
    assert len(bench.concurrency_leases["p1"]) == 1


@pytest.mark.parametrize("leaves", ["sent back", "lost"])
def test_a_lease_is_released_of_a_request_whose_reply_was_lost_and_that_leaves(bench: Bench, leaves: str) -> None:
    arrives = reply_is_lost(bench)
    if leaves == "lost":
        bench.is_a_move = True
    request = bench.come(bench.task("retry", "p1"))
    arrives()
    if leaves == "lost":
        assert len(bench.concurrency_leases["p1"]) == 1
        bench.lose_connection()
    assert request.ends == [leaves]
    assert not bench.concurrency_leases["p1"]
    bench.check_empty()


def test_a_permit_that_comes_after_its_release_is_released_as_well(bench: Bench) -> None:
    """A greenlet waits for the store, while another one closes the gate."""
    bench.at["ask"] = [bench.lose_connection]
    request = bench.come(bench.task("wait", "p1"))
    assert request.ends == ["lost"]
    bench.check_empty()


def test_every_run_has_an_id_of_its_own() -> None:
    ids = {run_id("task") for _ in range(100)}
    assert len(ids) == 100
    assert all(id.startswith("task#") for id in ids)


class Store:
    """Notes what is released at once."""

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


def test_what_has_ended_is_released_in_one_round_trip(store: Store, leases: LeaseKeeper) -> None:
    ended(leases, *"abcdefgh")
    leases.release_ended()
    assert store.released == [list("abcdefgh")]
    assert not leases.has_ended


def test_what_could_not_be_released_is_tried_again(store: Store, leases: LeaseKeeper) -> None:
    ended(leases, "a", "b")
    store.is_lost = True
    with pytest.raises(StoreUnavailable):
        leases.release_ended()
    assert leases.has_ended
    store.is_lost, store.released = False, []
    leases.release_ended()
    assert store.released == [["a", "b"]]


def test_a_lease_that_cannot_be_released_keeps_no_other_one(store: Store, leases: LeaseKeeper) -> None:
    ended(leases, "a", "b", "c")
    store.broken = {"b"}
    with pytest.raises(ZeroDivisionError):
        leases.release_ended()
    assert [each.id for each in leases.ended([PLACE])] == ["b"]


def test_a_short_lease_is_renewed_often_while_it_is_held_and_no_longer(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses, goes_on = queue.Queue[float](), queue.Queue[bool]()

    class Wakeup(threading.Event):
        """Goes on when the test says so."""

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


def test_a_call_for_leases_asks_for_as_many_as_processes_are_free(bench: Bench) -> None:
    """The call itself reserves none of them: two leases that are free together are taken by one script."""
    asked_for: list[int] = []
    decide = bench.release_and_acquire

    def note(demands: Any, asking: Any, ended: Any) -> Any:
        asked_for.append(asking.most)
        return decide(demands, asking, ended)

    bench.release_and_acquire = note  # type: ignore[method-assign]
    bench.come(bench.task("wait", "p1"))
    assert asked_for == [8]
