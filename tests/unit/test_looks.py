"""How often one worker of many looks for lots that are due, and what it tells the store later."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from celery_ratelimit import StoreUnavailable
from celery_ratelimit.backlog.due import LOOK, OWN, SELDOM, DueLots
from celery_ratelimit.backlog.messages import Looked, Parked
from celery_ratelimit.backlog.pending_reports import PendingReports
from celery_ratelimit.backlog.poll_backoff import Pace
from celery_ratelimit.backlog.store_calls import advance, asked

LOT, OTHER = ("api", ""), ("api", "other")
ONE = Parked("a", 1, 0, 0.5, "{}")


def test_looks_that_find_nothing_become_seldom_where_there_are_many_workers() -> None:
    pace = Pace(0.2, 2.0)
    for _ in range(10):
        pace.found(False)
    assert all(1.5 <= pace.pause(1000) <= 2.5 for _ in range(100))
    assert all(0.2 <= pace.pause(2) <= 0.5 for _ in range(100)), "two workers"
    assert pace.pause(1) <= 0.25, "one alone looks as often as ever"
    pace.found(True)
    assert pace.pause(1000) <= 0.25


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
def due(lots: Lots, now: list[float]) -> DueLots:
    parking: Any = lots
    limits: Any = SimpleNamespace(names=["api"])
    return DueLots(parking, limits)


def test_who_lets_tasks_out_goes_on_with_that_lot_and_does_not_ask(due: DueLots, lots: Lots, now: list[float]) -> None:
    lots.answers = [[LOT]]
    asked(due.looks())
    due.note([Looked(LOT, LOOK, False, (ONE,))])
    now[0] += LOOK
    asked(due.looks())
    assert (due.first(), lots.asked) == ([LOT], 1)
    due.note([Looked(LOT, LOOK, False, (ONE,))])
    now[0] += OWN
    lots.answers = [[LOT, OTHER]]
    asked(due.looks())
    assert (due.first(), lots.asked) == ([LOT, OTHER], 2), "now and then it asks for the others"


def test_a_lot_that_another_worker_has_looked_after_is_left_to_that(due: DueLots, lots: Lots, now: list[float]) -> None:
    lots.answers = [[LOT]]
    asked(due.looks())
    due.note([Looked(LOT, 0.1, False, ())])
    now[0] += 0.2
    asked(due.looks())
    assert lots.asked == 2
    for _ in range(10):
        asked(due.looks())
    assert due.pause() >= 0.75 * SELDOM


def test_a_new_lot_is_asked_for_at_once(due: DueLots, lots: Lots, now: list[float]) -> None:
    lots.answers = [[LOT]]
    asked(due.looks())
    due.note([Looked(LOT, 0.01, False, (ONE,))])
    now[0] += 0.05
    due.are_new()
    asked(due.looks())
    assert lots.asked == 2


@pytest.mark.parametrize("is_new", [False, True])
def test_a_question_without_an_answer_is_asked_again(due: DueLots, lots: Lots, now: list[float], is_new: bool) -> None:
    asked(due.looks())
    now[0] += 0.1
    look = due.looks()
    advance(look)
    if is_new:
        due.are_new()
    with pytest.raises(StoreUnavailable):
        look.throw(StoreUnavailable("no answer"))
    assert due.are_asked_for, "though nobody is parked, as far as it is known"
    assert asked(due.looks(are_seen_to=True)) is is_new, "nobody else knows of it"


def test_lots_of_its_own_are_asked_for_again_with_the_others(due: DueLots, lots: Lots, now: list[float]) -> None:
    lots.answers = [[LOT]]
    asked(due.looks())
    due.note([Looked(LOT, 0.01, False, (ONE,))])
    now[0] += OWN
    look = due.looks()
    advance(look)
    with pytest.raises(StoreUnavailable):
        look.throw(StoreUnavailable("no answer"))
    asked(due.looks())
    assert lots.asked == 2, "it has not heard of them"


def test_what_is_told_is_told_once_and_what_comes_meanwhile_later(now: list[float]) -> None:
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
