"""The rules for a pending request, as tables: no worker, no store, a given time."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from celery_ratelimit import Concurrency, Limit, StoreUnavailable
from celery_ratelimit.app.options import Policy
from celery_ratelimit.app.plan import Plan
from celery_ratelimit.backlog.tuning import RETURN_AHEAD, RETURN_EARLY
from celery_ratelimit.limiter.limit_request import LimitRequest
from celery_ratelimit.limiter.upstream_methods import Paused
from celery_ratelimit.limits.decision import Decision, LimitState
from celery_ratelimit.worker.admission import claim, max_lookahead
from celery_ratelimit.worker.next_action import (
    BUNCHED,
    NOTIFICATION_TIMEOUT,
    RETURN_HOLD,
    STALE,
    Acquire,
    Action,
    BlockQueue,
    Fail,
    GiveUp,
    Park,
    Republish,
    RetryAt,
    Start,
    StartAt,
    before_acquire,
    granted,
    on_timer,
    refused,
    without_store,
)
from celery_ratelimit.worker.request import PendingRequest, State
from celery_ratelimit.worker.request_queue import LEAST_PAUSE, LimitQueue
from celery_ratelimit.worker.upstream_returns import put_back

NOW = 1000.0
LONGEST = 1440.0
EARLY = 0.025
RATE, PLACE = LimitRequest(Limit("10/s", name="rate"), "rate"), LimitRequest(Concurrency(2, name="place"), "place")
ERROR = StoreUnavailable("no answer")


def pending(
    throttle: str = "retry",
    *,
    inline: float = 0.02,
    max_wait: float | None = None,
    overflow: str = "fail",
    slot: bool = False,
    since: float = NOW,
    until: float = NOW + LONGEST,
    demands: tuple[LimitRequest, ...] = (RATE,),
    queue: str = "celery",
    not_before: float = 0.0,
    reserved_for: float = 0.0,
) -> PendingRequest:
    """A request that has just come, of a task with these options."""
    message = SimpleNamespace(headers={}, delivery_info={}, properties={}, body=b"")
    request: Any = SimpleNamespace(id="1", name="task", message=message, request_dict={}, delivery_info={})
    plan = Plan(tuple(each.limit for each in demands), Policy(throttle, inline, max_wait, overflow), None, demands, "")
    return PendingRequest(request, queue, plan, demands, 0, since, until, slot, slot, not_before, reserved_for)


def reply(wait: float = 0.0, *, allowed: bool = False, full: bool = False, binding: str | None = "rate") -> Decision:
    states = (LimitState("rate", "", 1, 0, 0.1, 0.1),)
    return Decision(allowed, 1, 0, wait, 0.1, binding, states, full, "1", 77, (RATE,))


def limit_queue(*, next_acquire: float = 0.0, is_open: bool = True, closed: float = 0.0) -> LimitQueue:
    return LimitQueue(next_acquire=next_acquire, permit_available=is_open, closed_until=closed)


# -- Before the store is asked -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_", "queue", "lot", "may_start", "action"),
    [
        (pending(), limit_queue(), None, True, Acquire(for_permit=True)),
        (pending(until=NOW), limit_queue(), None, True, Republish(0.0, RATE)),  # before the broker takes it for lost
        (pending(until=NOW + 0.001), limit_queue(), None, True, Acquire(for_permit=True)),
        (pending(until=NOW), limit_queue(), RATE, True, Republish(0.0, RATE)),
        # Behind parked tasks.
        (pending(), limit_queue(), RATE, True, Park(RATE, RETURN_AHEAD, only_behind=True)),
        (pending(slot=True), limit_queue(next_acquire=NOW + 1), None, True, BlockQueue(NOW + 1)),
        (pending("wait"), limit_queue(next_acquire=NOW + 1), None, True, BlockQueue(NOW + 1)),
        (pending(slot=True), limit_queue(next_acquire=NOW), None, True, Acquire(for_permit=True)),
        # Others come until then.
        (pending(slot=True, not_before=NOW + 0.05), limit_queue(), None, True, BlockQueue(NOW + 0.05)),
        (pending(not_before=NOW + 0.05), limit_queue(), None, False, BlockQueue(NOW + 0.05)),
        (pending(not_before=NOW + 0.05), limit_queue(), RATE, True, Park(RATE, RETURN_AHEAD, only_behind=True)),
        (pending(slot=True, not_before=NOW), limit_queue(), None, True, Acquire(for_permit=True)),
        # A request that could be parked acquires.
        (pending(), limit_queue(next_acquire=NOW + 1), None, True, Acquire(for_permit=True)),
        (
            pending("wait", inline=1.0),
            limit_queue(next_acquire=NOW + 1, closed=NOW + 1),
            None,
            True,
            BlockQueue(NOW + 1),
        ),
        (
            pending("wait"),
            limit_queue(next_acquire=NOW + 1, closed=NOW + 2),
            None,
            True,
            BlockQueue(NOW + 1, RATE, 2.0),
        ),  # which it says
        (
            pending("wait", slot=True),
            limit_queue(next_acquire=NOW + 1, closed=NOW + 2),
            None,
            True,
            BlockQueue(NOW + 1, None, 0.0),
        ),
        (pending("drop"), limit_queue(next_acquire=NOW + 1), None, True, Acquire(for_permit=True)),
        # A request with a slot waits for a process.
        (pending(slot=True), limit_queue(is_open=False), None, False, BlockQueue(None)),
        (pending("wait"), limit_queue(is_open=False), None, False, BlockQueue(None)),
        (pending("drop"), limit_queue(is_open=False), None, False, BlockQueue(None)),
        (pending(), limit_queue(), None, False, BlockQueue(None)),  # it could have started at once
        # Makes room for what is behind it.
        (pending(), limit_queue(is_open=False), None, False, Acquire(for_permit=False)),
    ],
)
def test_before_acquire(
    request_: PendingRequest, queue: LimitQueue, lot: LimitRequest | None, may_start: bool, action: Action
) -> None:
    assert before_acquire(request_, queue, NOW, lot=lot, may_start=may_start) == action


@pytest.mark.parametrize(
    ("request_", "queue", "action"),
    [
        (pending(), limit_queue(), BlockQueue(None)),  # it could have started at once
        (pending(), limit_queue(is_open=False, closed=NOW - 5), BlockQueue(None)),
        (pending(inline=0.5), limit_queue(is_open=False, closed=NOW + 0.5), BlockQueue(None)),
        (pending(), limit_queue(is_open=False, closed=NOW + 0.5), Park(RATE, 0.5, since=0)),  # makes room for the next
        (pending(inline=1.0), limit_queue(is_open=False, closed=NOW + 0.5), BlockQueue(None)),
        (pending(inline=0.0), limit_queue(closed=NOW + 0.5), Park(RATE, 0.5)),
        (pending(max_wait=1.0), limit_queue(is_open=False, closed=NOW + 0.5), Park(RATE, 0.5)),
        # The store alone gives a task up: for how long the limit is closed for this one is an estimate.
        (pending(max_wait=1.0), limit_queue(is_open=False, closed=NOW + 1.5), BlockQueue(None)),
        (pending(max_wait=1.0, since=NOW - 0.75), limit_queue(is_open=False, closed=NOW + 0.5), BlockQueue(None)),
        (pending(slot=True), limit_queue(is_open=False, closed=NOW + 0.5), BlockQueue(None)),
        (pending("wait"), limit_queue(is_open=False, closed=NOW + 0.5), BlockQueue(None)),
        (pending("drop"), limit_queue(is_open=False, closed=NOW + 0.5), BlockQueue(None)),
    ],
)
def test_new_request_without_a_process_is_parked_if_its_limit_is_closed_for_long(
    request_: PendingRequest, queue: LimitQueue, action: Action
) -> None:
    assert before_acquire(request_, queue, NOW, lot=None, may_start=False, parks=True) == action


@pytest.mark.parametrize(
    ("request_", "queue", "may_start", "action"),
    [
        (pending(slot=True), limit_queue(), False, Republish(0.0)),
        (pending(slot=True), limit_queue(next_acquire=NOW + 1), False, Republish(0.0)),
        (pending(slot=True), limit_queue(), True, Republish(0.0)),
        # Where it waits for the rest of the time.
        (pending(slot=True, reserved_for=NOW + 0.7), limit_queue(), False, Republish(0.7)),
        (pending(slot=True, reserved_for=NOW - 0.7), limit_queue(), False, Republish(0.0)),
        (pending(until=NOW, slot=True, reserved_for=NOW + 2), limit_queue(), False, Republish(0.0, RATE)),
    ],
)
def test_before_acquire_in_a_saturated_worker(
    request_: PendingRequest, queue: LimitQueue, may_start: bool, action: Action
) -> None:
    found = before_acquire(request_, queue, NOW, lot=None, may_start=may_start, leaves=True)
    assert isinstance(found, Republish)
    assert Republish(round(found.wait, 6), found.demand) == action


@pytest.mark.parametrize(
    ("request_", "seconds"),
    [
        (pending(), 0.02),
        (pending("wait"), 0.1),  # one that is held may have its permit ahead
        (pending(slot=True), 0.1),
        (pending("wait", inline=0.5), 0.5),
        (pending("wait", max_wait=0.05), 0.05),
        (pending(max_wait=5.0), 0.02),
    ],
)
def test_max_lookahead(request_: PendingRequest, seconds: float) -> None:
    assert max_lookahead(request_, 0.1) == seconds
    assert max_lookahead(pending(), 0.1, together=True) == 0.1, "a batch looks as far as a request that waits"


@pytest.mark.parametrize(
    ("request_", "parks", "seconds"),
    [
        (pending(), True, 0.02),  # a parked task gets its slot when it returns
        (pending(slot=True), True, RETURN_HOLD),
        (pending(), False, math.inf),
        (pending("wait"), False, math.inf),
        (pending(max_wait=7.0), False, 7.0),
        (pending(max_wait=0.01), True, 0.01),
        (pending(max_wait=0.01, slot=True), True, 0.01),
        (pending("drop"), False, 0.0),
    ],
)
def test_reservation_window(request_: PendingRequest, parks: bool, seconds: float) -> None:
    assert claim(request_, parks=parks) == seconds


# -- The answer --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wait", "is_idle", "action"),
    [
        (0.0, True, Start(77)),
        (0.0, False, StartAt(NOW, 77)),
        (0.05, True, StartAt(NOW + 0.05, 77)),
        (0.05, False, StartAt(NOW + 0.05, 77)),
    ],
)
def test_granted(wait: float, is_idle: bool, action: Action) -> None:
    assert granted(reply(wait, allowed=True), NOW, is_idle=is_idle) == action


@pytest.mark.parametrize(
    ("request_", "decision", "for_permit", "parks", "action"),
    [
        # It is a little early: in the worker.
        (pending(), reply(0.02), True, True, RetryAt(NOW + LEAST_PAUSE, has_reservation=True)),
        (pending(inline=0.1), reply(0.1), True, True, RetryAt(NOW + 0.1 - EARLY, has_reservation=True)),
        (pending(inline=0.1), reply(0.1), False, True, RetryAt(None, has_reservation=True)),  # when a process is free
        (pending(slot=True), reply(RETURN_HOLD), True, True, RetryAt(NOW + RETURN_HOLD - EARLY, has_reservation=True)),
        (pending("wait"), reply(0.02), True, False, RetryAt(NOW + LEAST_PAUSE, has_reservation=False)),
        (pending("wait", slot=True), reply(0.5), True, False, RetryAt(NOW + 0.5 - EARLY, has_reservation=True)),
        (pending("drop"), reply(0.02), True, False, RetryAt(NOW + LEAST_PAUSE, has_reservation=False)),
        (pending(), reply(0.0), False, True, BlockQueue(None)),  # a permit was there: it waits for a process
        # Its turn is far away.
        (pending(), reply(0.021), True, True, Park(RATE, 0.021, since=77)),
        (pending(slot=True), reply(RETURN_HOLD + 0.001), True, True, Park(RATE, RETURN_HOLD + 0.001, since=77)),
        (pending(), reply(5.0), True, False, Republish(5.0, RATE)),
        (pending("wait"), reply(5.0), True, False, BlockQueue(NOW + 5 - EARLY, RATE, 5.0)),
        (pending("wait"), reply(0.021), True, False, BlockQueue(NOW + LEAST_PAUSE, RATE, 0.021)),
        (pending("wait"), reply(LONGEST), True, False, BlockQueue(NOW + LONGEST - EARLY, RATE, LONGEST)),
        (pending("wait"), reply(LONGEST + 1), True, False, Republish(LONGEST + 1, RATE)),
        (pending("wait", demands=(PLACE, RATE)), reply(5.0), True, False, BlockQueue(NOW + 0.25, RATE, 5.0)),
        (pending(demands=(PLACE, RATE)), reply(5.0, binding=None), True, True, Park(PLACE, 5.0, since=77)),
        (pending("drop"), reply(0.021), True, False, GiveUp("drop", RATE, 0.021)),
        (pending("fail"), reply(0.021), True, False, GiveUp("fail", RATE, 0.021)),
        # Too far away for it.
        (pending(max_wait=5.0), reply(5.0), True, True, Park(RATE, 5.0, since=77)),
        (pending(max_wait=5.0), reply(5.001), True, True, GiveUp("fail", RATE, 5.001)),
        (pending(max_wait=5.0, overflow="drop", since=NOW - 3), reply(2.5), True, True, GiveUp("drop", RATE, 2.5)),
        (pending("wait", max_wait=5.0, overflow="later"), reply(6.0), True, False, GiveUp("later", RATE, 6.0)),
        (pending(max_wait=0.01), reply(0.015), True, True, GiveUp("fail", RATE, 0.015)),  # also what would be held here
        # Without max_wait no task is given up, also while its limit is paused without an end: that is 1e9 seconds.
        (pending(slot=True, since=NOW - 3), reply(1e9 - 0.3), True, True, Park(RATE, 1e9 - 0.3, since=77)),
        (pending(since=NOW - 3), reply(1e9), True, False, Republish(1e9, RATE)),
        (pending("wait", since=NOW - 3), reply(1e9 - 0.3), True, False, Republish(1e9 - 0.3, RATE)),
        # No room to wait.
        (pending(), reply(0.5, full=True), True, False, GiveUp("fail", RATE, 0.5, queue_full=True)),
        (pending(overflow="later", queue="later"), reply(0.5, full=True), True, False, Republish(0.5, RATE)),
        (pending("drop"), reply(0.5, full=True), True, False, GiveUp("drop", RATE, 0.5)),
    ],
)
def test_refused(request_: PendingRequest, decision: Decision, for_permit: bool, parks: bool, action: Action) -> None:
    told = refused(*(request_, decision, NOW), for_permit=for_permit, max_hold=LONGEST, parks=parks, early=EARLY)
    assert told == action


@pytest.mark.parametrize(
    ("request_", "wait", "action"),
    [
        (pending(slot=True), 0.5, BlockQueue(NOW + NOTIFICATION_TIMEOUT)),
        (pending(), 0.02, RetryAt(NOW + LEAST_PAUSE, has_reservation=True)),
        (pending("wait"), 5.0, BlockQueue(NOW + NOTIFICATION_TIMEOUT, PLACE, 5.0)),
        (pending("wait"), 2 * LONGEST, BlockQueue(NOW + NOTIFICATION_TIMEOUT, PLACE, 2 * LONGEST)),
        (pending(), 5.0, Park(PLACE, 5.0, since=77)),
    ],
)
def test_request_that_is_notified_of_free_leases(request_: PendingRequest, wait: float, action: Action) -> None:
    request_.demands = (PLACE,)
    options: dict[str, Any] = {"max_hold": LONGEST, "parks": True, "early": EARLY, "is_notified": True}
    assert refused(request_, reply(wait, binding="place"), NOW, for_permit=True, **options) == action


@pytest.mark.parametrize(
    ("choice", "request_", "may_start", "wait", "action"),
    [
        ("defer", pending(), True, 0.0, Republish(3.0 + RETURN_EARLY)),
        ("defer", pending("wait"), True, 0.0, BlockQueue(NOW + 3.0)),
        ("defer", pending("drop"), True, 0.0, Republish(3.0 + RETURN_EARLY)),
        ("raise", pending(), True, 0.0, Fail(ERROR)),
        ("raise", pending("wait"), False, 0.0, Fail(ERROR)),
        ("allow", pending(), True, 0.0, Start(0)),
        ("allow", pending(), False, 0.0, BlockQueue(None)),
        ("local", pending(), False, 0.0, BlockQueue(None)),
        ("local", pending(), True, 0.0, Start(0)),
        ("local", pending(), True, RETURN_HOLD, RetryAt(NOW + RETURN_HOLD, has_reservation=False)),
        ("local", pending(), True, RETURN_HOLD + 0.1, Republish(3.0 + RETURN_EARLY)),
        ("local", pending("wait"), True, RETURN_HOLD + 0.1, RetryAt(NOW + RETURN_HOLD + 0.1)),
    ],
)
def test_rules_without_the_store(
    choice: str, request_: PendingRequest, may_start: bool, wait: float, action: Action
) -> None:
    action_now = without_store(choice, request_, NOW, ERROR, may_start=may_start, wait=wait, pause=3.0)
    assert action_now == action


# -- Its time ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "late", "interval", "together", "is_idle", "action"),
    [
        (State.DEFERRED, 0.0, 0.01, False, True, RetryAt(NOW)),
        (State.GRANTED, 0.0, 0.01, False, True, Start(77)),
        (State.GRANTED, STALE - 0.001, 0.01, False, True, Start(77)),
        (State.GRANTED, STALE - 0.001, 0.01, False, False, BlockQueue(None)),  # a process is free soon
        (State.GRANTED, STALE + 0.001, 0.01, False, True, RetryAt(NOW)),
        (State.GRANTED, STALE + 0.001, 0.01, False, False, RetryAt(NOW)),
        (State.GRANTED, BUNCHED - 0.001, 0.01, True, True, Start(77)),
        (State.GRANTED, BUNCHED + 0.001, 0.01, True, True, RetryAt(NOW)),  # used together they would bunch
        (State.GRANTED, 0.45, 0.5, True, True, Start(77)),  # less than an interval late
        (State.GRANTED, 0.5, 0.5, True, True, Start(77)),
        (State.GRANTED, 0.55, 0.5, True, True, RetryAt(NOW)),
    ],
)
def test_rules_on_timer(
    state: State, late: float, interval: float, together: bool, is_idle: bool, action: Action
) -> None:
    limit = Limit(f"{round(10 / interval)}/10s", name="rate")
    one = pending(demands=(LimitRequest(limit, "rate"), LimitRequest(Limit("1000/s", name="faster"), "faster")))
    one.state, one.at, one.permit_at_us = state, NOW - late, 77
    assert on_timer(one, NOW, together=together, is_idle=is_idle) == action


# -- Its upstream has refused its call ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_", "paused", "parks", "action"),
    [
        (pending(), Paused(30.0), True, Park(RATE, 30.0, since=7)),
        (pending(), Paused(30.0), False, Republish(30.0, RATE)),
        (pending(), Paused(0.5, 0.51, 99), True, StartAt(NOW + 0.51, 99)),
        (pending("wait"), Paused(30.0), False, Republish(30.0, RATE)),
        (pending("wait"), Paused(0.5, 0.51, 99), False, StartAt(NOW + 0.51, 99)),
        (pending("drop"), Paused(30.0), False, GiveUp("drop", RATE, 30.0)),
        (pending(max_wait=30.0), Paused(30.0), True, Park(RATE, 30.0, since=7)),
        (pending(max_wait=29.0), Paused(30.0), True, GiveUp("fail", RATE, 30.0)),
        (pending(max_wait=29.0, overflow="later"), Paused(30.0), True, GiveUp("later", RATE, 30.0)),
    ],
)
def test_rules_after_an_upstream_refusal(request_: Any, paused: Paused, parks: bool, action: Action) -> None:
    assert put_back(request_, RATE, paused, NOW, since=7, parks=parks) == action
