"""Reports that wait: each is sent once, and again after a failure."""

from __future__ import annotations

from typing import Any

import pytest

from celery_ratelimit import StoreUnavailable
from celery_ratelimit.backlog.messages import Parked
from celery_ratelimit.backlog.scripts import PendingReports
from celery_ratelimit.store_calls.store_calls import Reply, advance, asked

LOT, OTHER = ("api", ""), ("api", "other")
ONE = Parked("a", 1, 0, 0.5, "{}")


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    return now


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
    with untold.telling([("api", "")]) as (ids, _):
        told.append(dict(ids))
        reply = yield lambda: "reply"
    return reply


def test_reports_in_flight_are_sent_once_and_kept_on_failure() -> None:
    untold, told = PendingReports(), []
    untold.note_acknowledged(("api", ""), "a")
    one = parks(untold, told)
    next(one)
    untold.note_acknowledged(("api", ""), "b")
    assert asked(parks(untold, told)) == "reply"
    assert told == [{("api", ""): ["a"]}, {("api", ""): ["b"]}]
    assert untold.lots == []

    reply = advance(one, Reply(error=StoreUnavailable("no answer")))
    assert isinstance(reply, Reply)
    with pytest.raises(StoreUnavailable):
        reply.get()
    assert (untold.acknowledged, untold.lots) == ({("api", ""): ["a"]}, [("api", "")])


def test_reports_without_a_reply_are_kept() -> None:
    untold, told = PendingReports(), []
    untold.note_acknowledged(("api", ""), "a")
    one = parks(untold, told)
    next(one)
    one.close()  # as when it is garbage
    assert untold.acknowledged == {("api", ""): ["a"]}
