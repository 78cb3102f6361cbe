"""The poll interval of one of many workers, and reports that wait."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from celery_ratelimit import StoreUnavailable
from celery_ratelimit.backlog.messages import Parked, PollResult
from celery_ratelimit.backlog.poll_timer import DueBuckets
from celery_ratelimit.backlog.tuning import MAX_POLL_INTERVAL, POLL_INTERVAL
from celery_ratelimit.store_calls.store_calls import advance, asked

LOT, OTHER = ("api", ""), ("api", "other")
ONE = Parked("a", 1, 0, 0.5, "{}")


class Lots:
    """A store that says which lots are due."""

    def __init__(self) -> None:
        self.register = SimpleNamespace(workers=1000)
        self.answers: list[Any] = []
        self.asked = 0

    def due(self, names: Any) -> Any:
        self.asked += 1
        return self.answers.pop(0) if self.answers else []


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    return now


@pytest.fixture
def lots() -> Lots:
    return Lots()


@pytest.fixture
def due(lots: Lots, now: list[float]) -> DueBuckets:
    parking: Any = lots
    limits: Any = SimpleNamespace(names=["api"])
    return DueBuckets(parking, limits)


def test_empty_polls_become_rare_with_many_workers(due: DueBuckets, lots: Lots) -> None:
    for _ in range(10):
        asked(due.find())
    assert all(1.5 <= due.pause() <= 2.5 for _ in range(100))
    lots.register.workers = 2
    assert all(POLL_INTERVAL <= due.pause() <= 2.5 * POLL_INTERVAL for _ in range(100)), "two workers"
    lots.register.workers = 1
    assert due.pause() <= 1.25 * POLL_INTERVAL, "one alone polls as often as ever"
    lots.register.workers = 1000
    due.note([PollResult(LOT, POLL_INTERVAL, False, (ONE,))])
    assert due.pause() <= 1.25 * POLL_INTERVAL, "the worker that finds tasks goes on with it"


def test_bucket_served_by_another_worker_is_left_to_it(due: DueBuckets, lots: Lots) -> None:
    lots.answers = [[LOT]]
    asked(due.find())
    due.note([PollResult(LOT, 0.1, False, ())])
    for _ in range(10):
        asked(due.find())
    assert due.pause() >= 0.75 * MAX_POLL_INTERVAL


def test_poll_without_a_reply_is_repeated(due: DueBuckets, now: list[float]) -> None:
    asked(due.find())
    assert not due.must_ask
    now[0] += 0.1
    poll = due.find()
    advance(poll)
    with pytest.raises(StoreUnavailable):
        poll.throw(StoreUnavailable("no answer"))
    assert due.must_ask, "though nothing is parked, as far as it is known"


def test_bucket_with_more_due_tasks_goes_behind_the_others(due: DueBuckets, lots: Lots) -> None:
    lots.answers = [[LOT, OTHER]]
    asked(due.find())
    due.note([PollResult(LOT, 0.0, False, (ONE,))])
    assert due.first() == [OTHER, LOT]
    due.note([PollResult(OTHER, 1.0, False, ()), PollResult(LOT, None, False, (ONE,))])
    assert not due
