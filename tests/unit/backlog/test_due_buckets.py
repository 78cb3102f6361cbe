"""The poll interval of one of many workers, and reports that wait."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from celery_ratelimit import StoreUnavailable
from celery_ratelimit.backlog.messages import Parked, PollResult
from celery_ratelimit.backlog.poll_timer import DueBuckets
from celery_ratelimit.backlog.scripts import PendingReports
from celery_ratelimit.backlog.tuning import MAX_POLL_INTERVAL, POLL_INTERVAL
from celery_ratelimit.store_calls.store_calls import Reply, advance, asked

LOT, OTHER = ("api", ""), ("api", "other")
ONE = Parked("a", 1, 0, 0.5, "{}")


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    return now


@pytest.fixture
def lots() -> Any:
    """A store that says which lots are due; one of many workers asks."""
    return Mock(due=Mock(return_value=[]), register=SimpleNamespace(workers=1000))


@pytest.fixture
def due(lots: Any, now: list[float]) -> DueBuckets:
    limits: Any = SimpleNamespace(names=["api"])
    return DueBuckets(lots, limits)


def test_empty_polls_become_rare_with_many_workers(due: DueBuckets, lots: Any) -> None:
    for _ in range(10):
        asked(due.find())
    for workers, least, most in (
        (1000, 1.5, 2.5),
        (2, POLL_INTERVAL, 2.5 * POLL_INTERVAL),
        (1, 0, 1.25 * POLL_INTERVAL),
    ):
        lots.register.workers = workers
        assert all(least <= due.pause() <= most for _ in range(100)), f"{workers} workers"
    lots.register.workers = 1000
    due.note([PollResult(LOT, POLL_INTERVAL, False, (ONE,))])
    assert due.pause() <= 1.25 * POLL_INTERVAL, "the worker that finds tasks goes on with it"


def test_bucket_served_by_another_worker_is_left_to_it(due: DueBuckets, lots: Any) -> None:
    lots.due.side_effect = [[LOT], *[[]] * 10]
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


def test_bucket_with_more_due_tasks_goes_behind_the_others(due: DueBuckets, lots: Any) -> None:
    lots.due.return_value = [LOT, OTHER]
    asked(due.find())
    due.note([PollResult(LOT, 0.0, False, (ONE,))])
    assert due.first() == [OTHER, LOT]
    due.note([PollResult(OTHER, 1.0, False, ()), PollResult(LOT, None, False, (ONE,))])
    assert not due


# -- Reports that wait -------------------------------------------------------------------------------------------------


def test_reports_are_sent_once_and_new_ones_wait(now: list[float]) -> None:
    untold = PendingReports()
    untold.note_acknowledged(LOT, "a")
    untold.note_published({LOT: [ONE], OTHER: [ONE]})
    now[0] += 2.0
    assert untold.waits(2.0)
    untold.note_acknowledged(LOT, "b")
    with untold.telling([LOT], published=True) as told:
        untold.note_acknowledged(LOT, "c")
    assert told == ({LOT: ["a", "b"]}, {LOT: [ONE]})
    assert (untold.acknowledged, untold.published) == ({LOT: ["c"]}, {OTHER: [ONE]})
    with untold.telling([LOT, OTHER]) as told:
        pass
    assert told == ({LOT: ["c"], OTHER: []}, {LOT: [], OTHER: []})
    assert untold.lots == [OTHER]
    with pytest.raises(StoreUnavailable), untold.telling([OTHER], published=True):
        raise StoreUnavailable("no answer")
    assert untold.published == {OTHER: [ONE]}
    with untold.telling([OTHER], published=True):
        pass
    assert not untold.lots
    assert not untold.waits(0.0)


def parks(untold: PendingReports, told: list[Any]) -> Any:
    with untold.telling([LOT]) as (ids, _):
        told.append(dict(ids))
        reply = yield lambda: "reply"
    return reply


@pytest.mark.parametrize("is_garbage", [False, True])
def test_reports_in_flight_are_sent_once_and_kept_on_failure(is_garbage: bool) -> None:
    untold, told = PendingReports(), []
    untold.note_acknowledged(LOT, "a")
    one = parks(untold, told)
    next(one)
    untold.note_acknowledged(LOT, "b")
    assert asked(parks(untold, told)) == "reply"
    assert told == [{LOT: ["a"]}, {LOT: ["b"]}]
    assert untold.lots == []
    if is_garbage:
        one.close()
    else:
        reply = advance(one, Reply(error=StoreUnavailable("no answer")))
        assert isinstance(reply, Reply)
        with pytest.raises(StoreUnavailable):
            reply.get()
    assert (untold.acknowledged, untold.lots) == ({LOT: ["a"]}, [LOT])
