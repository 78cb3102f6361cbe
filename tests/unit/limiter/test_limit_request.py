"""What a call asks of one limit: its cost, and what it leaves of a reserve."""

from __future__ import annotations

import pytest

from celery_ratelimit import Concurrency, Limit
from celery_ratelimit.limiter.limit_request import LimitRequest, costs_for, each_bucket_once
from celery_ratelimit.limits.any_limit import AnyLimit

RATE, PLACES = Limit("10/s", burst=10), Concurrency(5)
RESERVE = Limit("10/s", burst=10, priority_reserve={0: 0.2, 3: 0.3})


@pytest.mark.parametrize(
    ("limit", "leaves", "cost", "passes", "record", "left"),
    [
        (RATE, None, 3, False, None, 0),
        (RESERVE, None, 1, False, None, 5),
        (RESERVE, 500_000, 1, False, 500_000_500_000, 5),
        (RESERVE, 500_000, 7, False, 500_000_500_000, 3),  # a burst less its cost
        (RESERVE, 200_000, 1, True, 200_000_500_000, 2),  # it may use the reserve of priority 3
        (RESERVE, 0, 1, True, 500_000, 0),
        (RESERVE, 0, 11, True, 500_000, 0),
    ],
)
def test_call_leaves_a_part_of_the_burst(
    limit: Limit, leaves: int | None, cost: int, passes: bool, record: int | None, left: int
) -> None:
    demand = LimitRequest(limit, "api", "", cost, leaves=leaves)
    assert (demand.passes, demand.leaves_in_record, demand.left(10)) == (passes, record, left)


def test_call_leaves_nothing_without_a_reserve() -> None:
    assert LimitRequest(RATE, "api").left(10**7) == 0


def test_bucket_that_is_named_twice_is_charged_the_highest_cost() -> None:
    low, high, other = LimitRequest(RATE, "api", "a", 1), LimitRequest(RATE, "api", "a", 5), LimitRequest(RATE, "b")
    assert each_bucket_once([low, other, high]) == each_bucket_once([high, other, low]) == (high, other)
    assert other.cost == 1


@pytest.mark.parametrize(
    ("limits", "cost", "of_each", "costs"),
    [
        ([RATE, PLACES], None, False, [None, None]),
        ([RATE, PLACES], 3, False, [3, None]),  # beside a rate, a cost is not of places
        ([PLACES, PLACES], 3, False, [3, 3]),
        ([RATE, PLACES], 3, True, [3, 3]),
    ],
)
def test_cost_of_a_call_is_of_its_rates(limits: list[AnyLimit], cost: int | None, of_each: bool, costs: object) -> None:
    assert costs_for(limits, cost, of_each) == costs
