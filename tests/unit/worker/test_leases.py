"""A lease belongs to one run of a task and is released once."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from celery_ratelimit import Concurrency, StoreUnavailable
from celery_ratelimit._celery import Pool
from celery_ratelimit.limiter import leases as leases_module
from celery_ratelimit.limiter.leases import LONGEST_PAUSE, RENEWALS, LeaseKeeper
from celery_ratelimit.limiter.limit_request import LimitRequest
from celery_ratelimit.limiter.script_calls import LeasesToRelease
from celery_ratelimit.worker.concurrency import END_POLL_INTERVAL, ConcurrencyLeases
from tests.unit.worker.gate_bench import Bench, ends

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
    bench.receive(task, "task")
    bench.lose_connection()
    bench.receive(task, "task")
    bench.receive(task, "task")
    assert (ends(bench.requests), len(bench.leases_of["p1"])) == (["started", "started", ""], 2)
    bench.finish()
    assert (ends(bench.requests)[-1], len(bench.leases_of["p1"])) == ("started", 2), "one for each that runs"
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
    assert (request.ends, len(bench.leases_of["p1"])) == (["started"], 1)


@pytest.mark.parametrize("leaves", ["sent back", "lost"])
def test_leaving_request_with_a_lost_reply_releases_its_lease(bench: Bench, leaves: str) -> None:
    arrives = reply_is_lost(bench)
    bench.is_a_move = leaves == "lost"
    request = bench.receive(bench.task("retry", "p1"))
    arrives()
    if leaves == "lost":
        assert len(bench.leases_of["p1"]) == 1
        bench.lose_connection()
    assert request.ends == [leaves]
    assert not bench.leases_of["p1"]
    bench.check_empty()


def test_acquire_of_leases_asks_for_all_free_processes(bench: Bench) -> None:
    """The call itself reserves none of them: two leases that are free together are taken by one script."""
    decide = bench.release_and_acquire = Mock(side_effect=bench.release_and_acquire)  # type: ignore[method-assign]
    bench.receive(bench.task("wait", "p1"))
    assert [asking.most for _, asking, _ in (call.args for call in decide.call_args_list)] == [8]


# -- The keeper of the leases ------------------------------------------------------------------------------------------


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


def test_ended_leases_are_released_in_one_round_trip_and_again_after_a_failure(
    store: Store, leases: LeaseKeeper
) -> None:
    ended(leases, *"abcdefgh")
    store.is_lost = True
    with pytest.raises(StoreUnavailable):
        leases.release_ended()
    assert leases.has_ended
    store.is_lost = False
    leases.release_ended()
    assert store.released == [list("abcdefgh")] * 2
    assert not leases.has_ended


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


# -- A task that ends without a report of its pool ---------------------------------------------------------------------


@pytest.fixture
def running() -> Any:
    """The leases of running tasks, with timers that a test fires."""
    timers_set: list[tuple[float, Any]] = []
    ended: list[str] = []
    worker: Any = SimpleNamespace(
        pool=Pool(SimpleNamespace(num_processes=4, is_green=False)),
        timers=SimpleNamespace(call_after=lambda seconds, fire: timers_set.append((seconds, fire)) or (lambda: None)),
    )
    asker: Any = SimpleNamespace(is_cluster=False, client=None, prefix="")
    leases: Any = SimpleNamespace(end=lambda run_id, **_: ended.append(run_id))
    unused: Any = None
    made: Any = ConcurrencyLeases(
        worker, asker, leases, unused, unused, unused, lambda request: made.end(request), lambda queues: None
    )
    made.timers_set, made.ended = timers_set, ended
    return made


def run(running: Any, id: str) -> object:
    request = object()
    running.begin(SimpleNamespace(request=request, run_id=id, lease_unconfirmed=False))
    return request


def test_lease_of_a_task_missing_from_the_pool_is_released_by_a_poll(running: Any) -> None:
    stays, gone = run(running, "stays"), run(running, "gone")
    running._worker.pool._jobs[stays] = SimpleNamespace()
    ((seconds, look),) = running.timers_set
    look()
    assert running.ended == ["gone"]
    assert stays in running
    assert gone not in running
    assert [seconds, running.timers_set[1][0]] == [END_POLL_INTERVAL] * 2, "as long as one runs"


def test_no_poll_is_scheduled_while_nothing_runs(running: Any) -> None:
    running.watch()
    assert running.timers_set == []
    run(running, "gone")
    running.timers_set.pop()[1]()
    assert running.timers_set == []
