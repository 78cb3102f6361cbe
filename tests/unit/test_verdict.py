"""What becomes of a request that is held, rule by rule: no worker, no store, and a time that is given."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from celery_ratelimit import Concurrency, Limit, StoreUnavailable
from celery_ratelimit.app.options import Policy
from celery_ratelimit.app.plan import Plan
from celery_ratelimit.gate.asked_for import claim, horizon
from celery_ratelimit.gate.held import HeldRequest, State
from celery_ratelimit.gate.line import LEAST_PAUSE, Line
from celery_ratelimit.gate.verdict import (
    BUNCHED,
    RETURN_HOLD,
    STALE,
    Ask,
    AskAt,
    End,
    Fail,
    Hold,
    Park,
    SendBack,
    Start,
    Stay,
    Verdict,
    at_its_time,
    before_asking,
    granted,
    refused,
    without_store,
)
from celery_ratelimit.limiter.demand import Demand
from celery_ratelimit.limits.decision import Decision, LimitState
from celery_ratelimit.parking.lot import HORIZON
from celery_ratelimit.parking.publisher import LEAD

NOW = 1000.0
LONGEST = 1440.0
EARLY = 0.025
RATE, PLACE = Demand(Limit("10/s", name="rate"), "rate"), Demand(Concurrency(2, name="place"), "place")
ERROR = StoreUnavailable("no answer")


def held(
    throttle: str = "retry",
    *,
    inline: float = 0.02,
    max_wait: float | None = None,
    overflow: str = "fail",
    slot: bool = False,
    since: float = NOW,
    until: float = NOW + LONGEST,
    demands: tuple[Demand, ...] = (RATE,),
    queue: str = "celery",
    asks_from: float = 0.0,
    slot_at: float = 0.0,
) -> HeldRequest:
    """A request that has just come, of a task with these options."""
    message = SimpleNamespace(headers={}, delivery_info={}, properties={}, body=b"")
    request: Any = SimpleNamespace(id="1", name="task", message=message, request_dict={}, delivery_info={})
    plan = Plan(tuple(each.limit for each in demands), Policy(throttle, inline, max_wait, overflow), None, demands, "")
    return HeldRequest(request, queue, plan, demands, 0, since, until, slot, slot, asks_from, slot_at)


def said(wait: float = 0.0, *, allowed: bool = False, full: bool = False, binding: str | None = "rate") -> Decision:
    states = (LimitState("rate", "", 1, 0, 0.1, 0.1),)
    return Decision(allowed, 1, 0, wait, 0.1, binding, states, full, "1", 77, (RATE,))


def line(*, next_ask: float = 0.0, is_open: bool = True, closed: float = 0.0) -> Line:
    return Line(next_ask=next_ask, open=is_open, closed_until=closed)


# -- Before the store is asked -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_", "its_line", "lot", "may_start", "verdict"),
    [
        (held(), line(), None, True, Ask(for_permit=True)),
        (held(until=NOW), line(), None, True, SendBack(0.0, RATE)),  # before the broker takes it for lost
        (held(until=NOW + 0.001), line(), None, True, Ask(for_permit=True)),
        (held(until=NOW), line(), RATE, True, SendBack(0.0, RATE)),
        (held(), line(), RATE, True, Park(RATE, HORIZON, only_behind=True)),  # behind those who are parked
        (held(slot=True), line(next_ask=NOW + 1), None, True, Stay(NOW + 1)),
        (held("wait"), line(next_ask=NOW + 1), None, True, Stay(NOW + 1)),
        (held(slot=True), line(next_ask=NOW), None, True, Ask(for_permit=True)),
        (held(slot=True, asks_from=NOW + 0.05), line(), None, True, Stay(NOW + 0.05)),  # others come until then
        (held(asks_from=NOW + 0.05), line(), None, False, Stay(NOW + 0.05)),
        (held(asks_from=NOW + 0.05), line(), RATE, True, Park(RATE, HORIZON, only_behind=True)),
        (held(slot=True, asks_from=NOW), line(), None, True, Ask(for_permit=True)),
        (held(), line(next_ask=NOW + 1), None, True, Ask(for_permit=True)),  # who would be parked asks
        (held("wait"), line(next_ask=NOW + 1, closed=NOW + 0.01), None, True, Stay(NOW + 1)),
        (held("wait"), line(next_ask=NOW + 1, closed=NOW + 2), None, True, Stay(NOW + 1, RATE, 2.0)),  # which it says
        (held("wait", slot=True), line(next_ask=NOW + 1, closed=NOW + 2), None, True, Stay(NOW + 1)),
        (held("drop"), line(next_ask=NOW + 1), None, True, Ask(for_permit=True)),
        (held(slot=True), line(is_open=False), None, False, Stay(None)),  # who has a slot waits for a process
        (held("wait"), line(is_open=False), None, False, Stay(None)),
        (held("drop"), line(is_open=False), None, False, Stay(None)),
        (held(), line(), None, False, Stay(None)),  # it could have started at once
        (held(), line(is_open=False), None, False, Ask(for_permit=False)),  # makes room for what is behind it
    ],
)
def test_before_the_store_is_asked(
    request_: HeldRequest, its_line: Line, lot: Demand | None, may_start: bool, verdict: Verdict
) -> None:
    assert before_asking(request_, its_line, NOW, lot=lot, may_start=may_start) == verdict


@pytest.mark.parametrize(
    ("request_", "its_line", "soon", "verdict"),
    [
        (held(), line(is_open=False, closed=NOW + 0.01), True, Stay(None)),  # asks with others, when it may start
        (held(), line(is_open=False, closed=NOW - 5), True, Stay(None)),
        (held(), line(is_open=False, closed=NOW + 0.01), False, Ask(for_permit=False)),
        (held(), line(is_open=False, closed=NOW + 0.1), True, Ask(for_permit=False)),  # it may have to leave
        (held("drop"), line(is_open=False, closed=NOW + 0.1), True, Stay(None)),
    ],
)
def test_before_the_store_is_asked_where_a_process_is_free_in_a_moment(
    request_: HeldRequest, its_line: Line, soon: bool, verdict: Verdict
) -> None:
    assert before_asking(request_, its_line, NOW, lot=None, may_start=False, soon=soon) == verdict


@pytest.mark.parametrize(
    ("request_", "its_line", "may_start", "verdict"),
    [
        (held(slot=True), line(), False, SendBack(0.0)),
        (held(slot=True), line(next_ask=NOW + 1), False, SendBack(0.0)),
        (held(slot=True), line(), True, SendBack(0.0)),
        (held(slot=True, slot_at=NOW + 0.7), line(), False, SendBack(0.7)),  # where it waits for the rest of the time
        (held(slot=True, slot_at=NOW - 0.7), line(), False, SendBack(0.0)),
        (held(until=NOW, slot=True, slot_at=NOW + 2), line(), False, SendBack(0.0, RATE)),
    ],
)
def test_before_the_store_is_asked_where_it_leaves_for_another_worker(
    request_: HeldRequest, its_line: Line, may_start: bool, verdict: Verdict
) -> None:
    said = before_asking(request_, its_line, NOW, lot=None, may_start=may_start, leaves=True)
    if isinstance(verdict, SendBack) and isinstance(said, SendBack):
        said = SendBack(round(said.wait, 6), said.demand)
    assert said == verdict


@pytest.mark.parametrize(
    ("request_", "seconds"),
    [
        (held(), 0.02),
        (held("wait"), 0.1),  # one that is held may have its permit ahead
        (held(slot=True), 0.1),
        (held("wait", inline=0.5), 0.5),
        (held("wait", max_wait=0.05), 0.05),
        (held(max_wait=5.0), 0.02),
    ],
)
def test_how_far_ahead_a_permit_may_be_taken(request_: HeldRequest, seconds: float) -> None:
    assert horizon(request_, 0.1) == seconds


def test_who_asks_with_others_takes_a_permit_as_far_ahead_as_who_waits() -> None:
    assert horizon(held(), 0.1, together=True) == horizon(held("wait"), 0.1) == 0.1


@pytest.mark.parametrize(
    ("request_", "parks", "seconds"),
    [
        (held(), True, 0.02),  # who is parked gets its slot when it is let out
        (held(slot=True), True, RETURN_HOLD),
        (held(), False, 1e9),
        (held("wait"), False, 1e9),
        (held(max_wait=7.0), False, 7.0),
        (held(max_wait=0.01), True, 0.01),
        (held(max_wait=0.01, slot=True), True, 0.01),
        (held("drop"), False, 0.0),
    ],
)
def test_within_what_time_it_keeps_a_slot(request_: HeldRequest, parks: bool, seconds: float) -> None:
    assert claim(request_, parks=parks) == seconds


# -- The answer --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wait", "is_idle", "verdict"),
    [
        (0.0, True, Start(77)),
        (0.0, False, Hold(NOW, 77)),
        (0.05, True, Hold(NOW + 0.05, 77)),
        (0.05, False, Hold(NOW + 0.05, 77)),
    ],
)
def test_granted(wait: float, is_idle: bool, verdict: Verdict) -> None:
    assert granted(said(wait, allowed=True), NOW, is_idle=is_idle) == verdict


@pytest.mark.parametrize(
    ("request_", "decision", "for_permit", "parks", "verdict"),
    [
        # It is a little early: in the worker.
        (held(), said(0.02), True, True, AskAt(NOW + LEAST_PAUSE, has_slot=True)),
        (held(inline=0.1), said(0.1), True, True, AskAt(NOW + 0.1 - EARLY, has_slot=True)),
        (held(inline=0.1), said(0.1), False, True, AskAt(None, has_slot=True)),  # when a process is free
        (held(slot=True), said(RETURN_HOLD), True, True, AskAt(NOW + RETURN_HOLD - EARLY, has_slot=True)),
        (held("wait"), said(0.02), True, False, AskAt(NOW + LEAST_PAUSE, has_slot=False)),
        (held("wait", slot=True), said(0.5), True, False, AskAt(NOW + 0.5 - EARLY, has_slot=True)),
        (held("drop"), said(0.02), True, False, AskAt(NOW + LEAST_PAUSE, has_slot=False)),
        (held(), said(0.0), False, True, Stay(None)),  # a permit was there: it waits for a process
        # Its turn is far away.
        (held(), said(0.021), True, True, Park(RATE, 0.021, since=77)),
        (held(slot=True), said(RETURN_HOLD + 0.001), True, True, Park(RATE, RETURN_HOLD + 0.001, since=77)),
        (held(), said(5.0), True, False, SendBack(5.0, RATE)),
        (held("wait"), said(5.0), True, False, Stay(NOW + 5 - EARLY, RATE, 5.0)),
        (held("wait"), said(0.021), True, False, Stay(NOW + LEAST_PAUSE, RATE, 0.021)),
        (held("wait"), said(LONGEST), True, False, Stay(NOW + LONGEST - EARLY, RATE, LONGEST)),
        (held("wait"), said(LONGEST + 1), True, False, SendBack(LONGEST + 1, RATE)),
        (
            held("wait", demands=(PLACE, RATE)),
            said(5.0),
            True,
            False,
            Stay(NOW + 0.25, RATE, 5.0),
        ),
        (held(demands=(PLACE, RATE)), said(5.0, binding=None), True, True, Park(PLACE, 5.0, since=77)),
        (held("drop"), said(0.021), True, False, End("drop", RATE, 0.021)),
        (held("fail"), said(0.021), True, False, End("fail", RATE, 0.021)),
        # Too far away for it.
        (held(max_wait=5.0), said(5.0), True, True, Park(RATE, 5.0, since=77)),
        (held(max_wait=5.0), said(5.001), True, True, End("fail", RATE, 5.001)),
        (held(max_wait=5.0, overflow="drop", since=NOW - 3), said(2.5), True, True, End("drop", RATE, 2.5)),
        (held("wait", max_wait=5.0, overflow="later"), said(6.0), True, False, End("later", RATE, 6.0)),
        (held(max_wait=0.01), said(0.015), True, True, End("fail", RATE, 0.015)),  # also what would be held here
        # No room to wait.
        (held(), said(0.5, full=True), True, False, End("fail", RATE, 0.5, full=True)),
        (held(overflow="later", queue="later"), said(0.5, full=True), True, False, SendBack(0.5, RATE)),
        (held("drop"), said(0.5, full=True), True, False, End("drop", RATE, 0.5)),
    ],
)
def test_refused(request_: HeldRequest, decision: Decision, for_permit: bool, parks: bool, verdict: Verdict) -> None:
    told = refused(*(request_, decision, NOW), for_permit=for_permit, longest=LONGEST, parks=parks, early=EARLY)
    assert told == verdict


@pytest.mark.parametrize(
    ("choice", "request_", "may_start", "wait", "verdict"),
    [
        ("defer", held(), True, 0.0, SendBack(3.0 + LEAD)),
        ("defer", held("wait"), True, 0.0, Stay(NOW + 3.0)),
        ("defer", held("drop"), True, 0.0, SendBack(3.0 + LEAD)),
        ("raise", held(), True, 0.0, Fail(ERROR)),
        ("raise", held("wait"), False, 0.0, Fail(ERROR)),
        ("allow", held(), True, 0.0, Start(0)),
        ("allow", held(), False, 0.0, Stay(None)),
        ("local", held(), False, 0.0, Stay(None)),
        ("local", held(), True, 0.0, Start(0)),
        ("local", held(), True, RETURN_HOLD, AskAt(NOW + RETURN_HOLD)),
        ("local", held(), True, RETURN_HOLD + 0.1, SendBack(3.0 + LEAD)),
        ("local", held("wait"), True, RETURN_HOLD + 0.1, AskAt(NOW + RETURN_HOLD + 0.1)),
    ],
)
def test_without_the_store(choice: str, request_: HeldRequest, may_start: bool, wait: float, verdict: Verdict) -> None:
    said = without_store(choice, request_, NOW, ERROR, may_start=may_start, wait=wait, pause=3.0)
    assert said == verdict


# -- Its time ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "late", "interval", "together", "is_idle", "verdict"),
    [
        (State.ASKS_AGAIN, 0.0, 0.01, False, True, AskAt(NOW)),
        (State.HOLDS_PERMIT, 0.0, 0.01, False, True, Start(77)),
        (State.HOLDS_PERMIT, STALE - 0.001, 0.01, False, True, Start(77)),
        (State.HOLDS_PERMIT, STALE - 0.001, 0.01, False, False, Stay(None)),  # a process is free soon
        (State.HOLDS_PERMIT, STALE + 0.001, 0.01, False, True, AskAt(NOW)),
        (State.HOLDS_PERMIT, STALE + 0.001, 0.01, False, False, AskAt(NOW)),
        (State.HOLDS_PERMIT, BUNCHED - 0.001, 0.01, True, True, Start(77)),
        (State.HOLDS_PERMIT, BUNCHED + 0.001, 0.01, True, True, AskAt(NOW)),  # used together they would bunch
        (State.HOLDS_PERMIT, 0.45, 0.5, True, True, Start(77)),  # less than an interval late
        (State.HOLDS_PERMIT, 0.5, 0.5, True, True, Start(77)),
        (State.HOLDS_PERMIT, 0.55, 0.5, True, True, AskAt(NOW)),
    ],
)
def test_when_its_time_has_come(
    state: State, late: float, interval: float, together: bool, is_idle: bool, verdict: Verdict
) -> None:
    limit = Limit(f"{round(10 / interval)}/10s", name="rate")
    one = held(demands=(Demand(limit, "rate"),))
    one.state, one.at, one.permit_at_us = state, NOW - late, 77
    assert at_its_time(one, NOW, together=together, is_idle=is_idle) == verdict
