"""Copies of returned tasks are reported in the call that acquires their permits: a worker's part.

The script: test_batched_park.py.
"""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import pytest

from celery_ratelimit import ImpossibleRequest, Limit, Limiter, StoreUnavailable
from celery_ratelimit._celery.saved_message import RETURN_HEADER
from celery_ratelimit.backlog.backlog import Backlog
from celery_ratelimit.backlog.deduplicator import Deduplicator
from celery_ratelimit.backlog.tuning import REPORT_DELAY
from celery_ratelimit.worker.deduplication import Deduplication, acquire_along
from tests.conftest import Clock
from tests.parks import packed

from .backlog_steps import API, BUCKET, let_out
from .frozen import demand


def held(id: str, copy: int) -> Any:
    """A request of a copy that came back."""
    marker = {"queue": "celery", "eta": None, "exchange": "", "routing_key": "", "id": id, "lot": list(BUCKET)}
    headers = {RETURN_HEADER: {**marker, "copy": copy, "since": 0}}
    message = SimpleNamespace(headers=headers, properties={})
    request = SimpleNamespace(message=message, delivery_info={})
    return SimpleNamespace(request=request, id=id, demands=(API,), shadow=())


class Timers(list[tuple[float, Any]]):
    """What is to be called, and after how many seconds."""

    def call_after(self, seconds: float, call: Any) -> Any:
        entry = (seconds, call)
        self.append(entry)
        return lambda: self.remove(entry)


class NoOutage:
    def __bool__(self) -> bool:
        return False

    def ask(self, question: Any, otherwise: Any) -> Any:
        return question()


@pytest.fixture
def arrivals(parking: Backlog, clock: Clock) -> Deduplicator:
    worker: Any = SimpleNamespace(timers=Timers())
    outage: Any = NoOutage()
    return Deduplicator(worker, parking, outage)


def come(arrivals: Deduplicator, *pairs: tuple[str, int]) -> list[Any]:
    requests = [held(*pair) for pair in pairs]
    for each in requests:
        arrivals.on_message(each.request.message)
    return requests


def acquire(arrivals: Deduplicator, frozen: Limiter, requests: list[Any]) -> tuple[list[Any], list[bool]]:
    """The decisions, and which of the copies that were told along may run."""
    with arrivals.told_along(requests) as told:
        assert told is not None
        ids = [each.id for each in requests]
        decisions, told.may = acquire_along(frozen._asker, (API,), ids, told.along, horizon=0.0, claim=0.0)
        told.answered = len(decisions)
    return decisions, told.may


def test_first_acquire_reports_all_arrivals_of_the_backlog(
    arrivals: Deduplicator, parking: Backlog, frozen: Limiter, clock: Clock
) -> None:
    parking.park({BUCKET: [packed("b", 1, "{}", 2)]})  # an older copy of it comes
    first, second, third = come(arrivals, ("a", 1), ("b", 1), ("c", 1))
    assert all(map(arrivals.asks_along, (first, second, third)))
    with arrivals.told_along([first]) as told:
        assert told is not None
        assert not arrivals.asks_along(second), "the answer is on its way"
        decisions, told.may = acquire_along(frozen._asker, (API,), ["a"], told.along, horizon=0.0, claim=0.0)
        told.answered = 1
    assert decisions[0] is not None
    assert decisions[0].allowed
    assert not any(map(arrivals.asks_along, (first, second, third))), "all of them were told"
    assert [arrivals.may_run(each) for each in (first, second, third)] == [True, False, True]


@pytest.mark.parametrize("asks_first", [0, 1])
@pytest.mark.parametrize("along", [False, True])
def test_one_of_two_copies_in_one_worker_may_run(
    arrivals: Deduplicator, parking: Backlog, frozen: Limiter, clock: Clock, asks_first: int, along: bool
) -> None:
    """The worker that published the first was killed before it confirmed, and the task left once more."""
    parking.park({BUCKET: [packed("a", 1, "{}", 1)]})
    assert [each.copy for each in let_out(parking)] == [1]
    clock.advance(60)
    assert [each.copy for each in let_out(parking)] == [2]
    both = come(arrivals, ("a", 1), ("a", 2))
    first, second = both[asks_first], both[1 - asks_first]
    if along and arrivals.asks_along(first):
        may = acquire(arrivals, frozen, [first])[1][:1]
    else:
        may = [arrivals.may_run(first)]
    assert not arrivals.asks_along(second)
    assert sorted([*may, arrivals.may_run(second)]) == [False, True]


def test_copy_arriving_during_a_failed_report_is_reported_by_itself(
    arrivals: Deduplicator, parking: Backlog, clock: Clock
) -> None:
    parking.park({BUCKET: [packed("a", 1, "{}", 1)]})
    let_out(parking)
    clock.advance(60)
    let_out(parking)
    (first,) = come(arrivals, ("a", 1))
    with contextlib.suppress(StoreUnavailable), arrivals.told_along([first]):
        (second,) = come(arrivals, ("a", 2))
        raise StoreUnavailable("no answer")
    assert arrivals.asks_along(first)
    assert not arrivals.asks_along(second)
    assert [arrivals.may_run(each) for each in (second, first)] == [False, True]


def test_later_copy_of_the_same_number_is_checked_again(arrivals: Deduplicator, parking: Backlog, clock: Clock) -> None:
    """On RabbitMQ a task that is sent again, with the same id and arguments, is known by the same id."""

    def parks(copy: int) -> None:
        parking.park({BUCKET: [packed("a", 1, "{}", copy)]})
        parking.untold.note_acknowledged(BUCKET, "a", f"t{copy}")
        parking.published()

    (first,) = come(arrivals, ("a", 1))
    first.request.delivery_info["redelivered"] = True
    assert arrivals.may_run(first)
    parks(2)
    (other,) = come(arrivals, ("b", 1))
    assert arrivals.may_run(other), "that the first has come is told with it, and it is parked"
    assert [each.copy for each in let_out(parking)] == [2]
    (second,) = come(arrivals, ("a", 2))
    assert arrivals.may_run(second)
    parks(1)
    clock.advance(1)
    assert [each.copy for each in let_out(parking)] == [1]
    (again,) = come(arrivals, ("a", 1))
    assert arrivals.may_run(again)


def test_copy_sent_back_is_reported_with_its_acquire(arrivals: Deduplicator) -> None:
    """Unless it may be parked for another of its limits."""
    (only,) = come(arrivals, ("a", 1))
    only.request.message.headers[RETURN_HEADER]["again"] = True
    assert arrivals.asks_along(only)
    only.shadow = (demand("1/s", name="other"),)
    assert not arrivals.asks_along(only)


def test_forgotten_copy_is_not_reported(arrivals: Deduplicator) -> None:
    first, second = come(arrivals, ("a", 1), ("b", 1))
    arrivals.forget(first)
    assert arrivals._arriving == {BUCKET: {"b": 1}}
    arrivals.forget(second)
    assert arrivals._arriving == {}


def test_copy_is_reported_again_after_a_lost_reply(arrivals: Deduplicator) -> None:
    (only,) = come(arrivals, ("a", 1))
    with pytest.raises(StoreUnavailable), arrivals.told_along([only]):
        raise StoreUnavailable("no answer")
    assert arrivals.asks_along(only)


def test_copy_behind_a_refusal_learns_its_result_later(
    arrivals: Deduplicator, parking: Backlog, frozen: Limiter, clock: Clock
) -> None:
    parking.park({BUCKET: [packed("c", 1, "{}", 2)]})
    several = come(arrivals, ("a", 1), ("b", 1), ("c", 1))
    decisions, _ = acquire(arrivals, frozen, several)
    assert [decision is not None and decision.allowed for decision in decisions] == [True, False]
    assert not arrivals.may_run(several[2])


def test_stale_copy_takes_no_permit(parking: Backlog, frozen: Limiter, clock: Clock) -> None:
    parking.park({BUCKET: [packed("a", 1, "{}", 2)]})
    told = parking.copies.along({BUCKET: {"a": 1}}, [("a", 1), ("x", 1)])
    decisions, may = acquire_along(frozen._asker, (API,), ["a", "x"], told, horizon=0.0, claim=0.0)
    assert (may, decisions[0]) == ([False], None)
    assert decisions[1] is not None
    assert decisions[1].allowed


def test_impossible_cost_raises_and_the_copy_is_reported_by_itself(
    arrivals: Deduplicator, parking: Backlog, frozen: Limiter, clock: Clock
) -> None:
    frozen.set_rate("api", Limit("100/s", burst=2), force=True)
    costly = demand("100/s", burst=5, cost=3)
    (only,) = come(arrivals, ("a", 1))
    told = parking.copies.along({BUCKET: {"a": 1}}, [("a", 1)])
    with pytest.raises(ImpossibleRequest), arrivals.told_along([only]):
        acquire_along(frozen._asker, [costly], ["a"], told, horizon=0.0, claim=0.0)
    assert arrivals.may_run(only)


def test_copy_that_does_not_acquire_is_reported_after_a_delay(
    arrivals: Deduplicator, parking: Backlog, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    timers: Any = arrivals._worker.timers
    (only,) = come(arrivals, ("a", 1))
    ((seconds, tell),) = timers
    assert seconds == REPORT_DELAY
    now[0] += REPORT_DELAY
    tell()
    assert not arrivals.asks_along(only)
    assert arrivals.may_run(only)


def test_copy_reported_meanwhile_is_not_acquired_for(arrivals: Deduplicator, parking: Backlog, clock: Clock) -> None:
    """Where greenlets switch, another one may tell of it between a look at it and its question."""
    parking.park({BUCKET: [packed("a", 1, "{}", 2)]})
    first, second, third = come(arrivals, ("a", 1), ("b", 1), ("c", 1))
    for each in (first, second, third):
        each.duplicate_checked = False
        assert arrivals.asks_along(each)
    third.duplicate_checked = arrivals.may_run(third)  # that of another greenlet
    acquired: list[list[Any]] = []

    def acquire(asking: Any) -> Any:
        acquired.append(list(asking))
        return ["a permit"] * len(asking)

    def acquire_along(asking: Any, along: Any) -> Any:
        raise AssertionError("no copy is told of")

    copies = Deduplication(None, arrivals, None)  # type: ignore[arg-type]
    assert copies.acquire([first, third], acquire, acquire_along) == [None], "another copy is parked"
    copies.acquire([second, first], acquire, acquire_along)
    assert acquired == [[second]]
    assert (second.duplicate_checked, first.duplicate_checked) == (True, False)
    copies.acquire([third, second], acquire, acquire_along)
    assert acquired[1:] == [[third, second]]
