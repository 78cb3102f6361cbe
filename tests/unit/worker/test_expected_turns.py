"""The turns that a worker knows of: returning tasks, parked tasks and backlogs."""

from __future__ import annotations

import pytest

from celery_ratelimit import Limit
from celery_ratelimit.backlog.tuning import RETURN_AHEAD
from celery_ratelimit.limiter.limit_request import LimitRequest
from celery_ratelimit.worker.expected_turns import KEEP, ExpectedTurns
from celery_ratelimit.worker.next_action import Park
from tests.unit.backlog.test_known_turns import message

NOW = 100.0
NEVER = float("inf")
DEMAND = LimitRequest(Limit("4/s", name="api"), "api")


def test_expected_turn_lasts_until_its_task_returns_or_is_late() -> None:
    turns = ExpectedTurns(float)
    assert turns.next(NOW) == NEVER
    turns.expect("b", "5", NOW + 0.5, NOW)
    turns.expect("a", "0.1", NOW + 0.2, NOW)
    assert turns.next(NOW) == NOW + 0.2
    assert turns.pop("a") == NOW + 0.2
    assert turns.pop("never expected") == 0.0
    assert turns.next(NOW) == NOW + 0.5
    turns.expect("b", "5", NOW + 0.9, NOW)  # another copy
    assert turns.next(NOW) == NOW + 0.9
    assert turns.next(NOW + 0.95) == NOW + 0.9, "a timer may be late"
    assert turns.next(NOW + 2) == NEVER


@pytest.mark.parametrize(
    ("action", "interval", "turn", "parked"),
    [
        (Park(DEMAND, 0.5), 0.25, 0.5, 0.5),
        (Park(DEMAND, 1.5), 0.25, NEVER, 1.5),  # only in the backlog: its turn may come in another worker
        (Park(DEMAND, RETURN_AHEAD, only_behind=True), 0.25, NEVER, 0.25),  # the one before it
        (Park(DEMAND, RETURN_AHEAD, only_behind=True), KEEP, NEVER, KEEP),
        (Park(DEMAND, RETURN_AHEAD, only_behind=True), 1.5, NEVER, NEVER),
    ],
)
def test_expected_turn_of_a_parked_task(action: Park, interval: float, turn: float, parked: float) -> None:
    turns = ExpectedTurns(float)
    turns.expect_parked("a", "0.01", action, interval, NOW)
    assert (turns.next(NOW), turns.next_briefer("2", NOW)) == (NOW + turn, NOW + parked)
    assert turns.next_briefer("inf", NOW) == NOW + parked, "it may run for long"
    assert turns.next(NOW, 2.0) == NOW + parked, "before a long task also parked ones count"


def test_returning_task_is_expected_and_the_next_one_an_interval_later() -> None:
    turns, limits = ExpectedTurns(float), {"api": DEMAND.limit}
    turns.expect_return({**message("api").headers, "task": "0.01"}, limits, NOW + 0.5, NOW)
    assert turns.next_briefer("2", NOW) == NOW + 0.5
    assert turns.pop("a") == NOW + 0.5
    assert turns.next_briefer("2", NOW) == NOW + 0.75
    turns.clear()
    assert turns.next_briefer("2", NOW) == NEVER


def test_past_turns_do_not_accumulate() -> None:
    turns = ExpectedTurns(float)
    for number in range(1000):
        turns.expect(str(number), "5", NOW + number + 1, NOW + number)
        if number % 2:
            turns.pop(str(number))  # the others were revoked
    assert sum(map(len, turns._by_name.values())) + len(turns._turns) <= 4
    assert turns.next(NOW + 2000) == NEVER
    assert not turns._by_name


def test_expected_backlog_lasts_some_turns_per_worker() -> None:
    turns = ExpectedTurns(float, lambda: 3)
    turns.expect_backlog("0.01", NOW + 0.1, 0.5, NOW)
    turns.expect_backlog("0.01", NOW + 0.3, 0.5, NOW)
    assert turns.next(NOW) == NEVER, "it may come to another worker"
    assert turns.next_briefer("2", NOW) == NOW + 0.1
    assert turns.next_briefer("2", NOW + 3) == NOW + 3, "it may have its turn at any time"
    assert turns.next_briefer("2", NOW + 3.4) == NEVER
