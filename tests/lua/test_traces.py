"""Traces of token buckets that were worked out by hand, on the frozen clock: of one limit, and of two (law 6)."""

from __future__ import annotations

import pytest
import redis

from celery_ratelimit import Limiter
from celery_ratelimit.limiter.limit_request import each_bucket_once
from tests.conftest import START, Clock

from .frozen import answer, demand, us

YES, NO = True, False

#: Rate, burst, and rows of (time, cost, allowed, remaining, retry_after).
TABLES: dict[str, tuple[str, int, list[tuple[float, int, bool, int, float]]]] = {
    "burst 3 goes at once, then at the rate": (
        "10/s",
        3,
        [
            (0.0, 1, YES, 2, 0.0),
            (0.0, 1, YES, 1, 0.0),
            (0.0, 1, YES, 0, 0.0),
            (0.0, 1, NO, 0, 0.1),
            (0.1, 1, YES, 0, 0.0),
            (0.25, 1, YES, 0, 0.0),  # one permit and a half were there
            (0.25, 1, NO, 0, 0.05),
            (0.3, 1, YES, 0, 0.0),
            (0.6, 1, YES, 2, 0.0),
            (9.9, 1, YES, 2, 0.0),  # never more than the burst
        ],
    ),
    "costs above one": (
        "10/s",
        10,
        [
            (0.0, 4, YES, 6, 0.0),
            (0.0, 7, NO, 6, 0.1),
            (0.0, 6, YES, 0, 0.0),
            (0.0, 10, NO, 0, 1.0),
            (0.5, 6, NO, 5, 0.1),
            (0.5, 5, YES, 0, 0.0),
            (0.55, 1, NO, 0, 0.05),
            (1.5, 10, YES, 0, 0.0),
            (1.5, 10, NO, 0, 1.0),
        ],
    ),
    "a third of a microsecond above a whole millisecond: the bucket is not forgotten before it is full": (
        "3 per 3.000001 s",
        1,
        [
            (0.0, 1, YES, 0, 0.0),
            (1.0, 1, NO, 0, 0.000001),
            (1.000001, 1, YES, 0, 0.0),
        ],
    ),
    "3/s, burst 3: thirds of a microsecond are carried, three permits take a second exactly": (
        "3/s",
        3,
        [
            (0.0, 3, YES, 0, 0.0),
            (0.333333, 1, NO, 0, 0.000001),
            (0.333334, 1, YES, 0, 0.0),
            (0.666666, 1, NO, 0, 0.000001),
            (0.666667, 1, YES, 0, 0.0),
            (0.999999, 1, NO, 0, 0.000001),
            (1.0, 1, YES, 0, 0.0),
            (1.0, 3, NO, 0, 1.0),
            (1.999999, 3, NO, 2, 0.000001),
            (2.0, 3, YES, 0, 0.0),
        ],
    ),
    "a clock that steps back by seconds: no time has passed meanwhile": (
        "10/s",
        2,
        [
            (5.1, 1, YES, 1, 0.0),
            (0.0, 1, YES, 0, 0.0),
            (0.0, 1, NO, 0, 0.1),
            (0.0, 1, NO, 0, 0.1),
            (0.1, 1, YES, 0, 0.0),
            (0.1, 1, NO, 0, 0.1),
            (0.2, 1, YES, 0, 0.0),
            (0.3, 1, YES, 0, 0.0),
            (0.5, 1, YES, 1, 0.0),
        ],
    ),
}


@pytest.mark.parametrize("name", TABLES)
def test_hand_worked_trace(frozen: Limiter, clock: Clock, name: str) -> None:
    rate, burst, rows = TABLES[name]
    for number, (time, cost, allowed, remaining, retry_after) in enumerate(rows):
        clock.set(START + us(time))
        got = frozen._asker.ask([demand(rate, burst=burst, cost=cost)])
        seen = (got.allowed, got.remaining, got.retry_after)
        assert seen == (allowed, remaining, retry_after), f"row {number}, at {time}"
        assert got.capacity == burst
        assert got.limited_by == (None if allowed else "api")


def test_reset_fills_the_bucket_and_removes_slots(frozen: Limiter, store: redis.Redis) -> None:
    wanted = [demand("1/m")]
    frozen._asker.ask(wanted)
    frozen._asker.ask(wanted, id="waiting", claim=1e6)
    other = [demand("1/m", name="other")]
    frozen._asker.ask(other)
    frozen.reset(wanted[0].limit)
    assert not store.exists("ratelimit:v1:{api}::state", "ratelimit:v1:{api}::slots")
    assert frozen._asker.ask(wanted).allowed
    assert not frozen._asker.ask(other).allowed


def test_law_6_all_or_none_and_limited_by_names_the_refusing_limit(frozen: Limiter, clock: Clock) -> None:
    tight, loose = demand("10/s", name="tight"), demand("10/s", burst=5, name="loose")
    rows = [
        # time in us, what is asked, allowed, wait in us, binding, permits left in each
        (0, (tight, loose), True, 0, None, (0, 4)),
        (0, (tight, loose), False, 100_000, "tight", (0, 4)),
        (0, (loose, tight), False, 100_000, "tight", (4, 0)),
        (0, (demand("10/s", burst=5, cost=4, name="loose"),), True, 0, None, (0,)),
        (50_000, (tight, loose), False, 50_000, "tight", (0, 0)),  # both say no, the first of the two decides
        (50_000, (loose, tight), False, 50_000, "loose", (0, 0)),
        (100_000, (loose,), True, 0, None, (0,)),
        (100_000, (tight, loose), False, 100_000, "loose", (1, 0)),
        (100_000, (tight,), True, 0, None, (0,)),
        (200_000, (tight, loose), True, 0, None, (0, 0)),
    ]
    for number, (at, asked, allowed, wait, binding, left) in enumerate(rows):
        clock.set(START + at)
        got = frozen._asker.ask(asked)
        seen = (*answer(got), got.limited_by, tuple(state.remaining for state in got.states))
        assert seen == (allowed, wait, binding, left), f"row {number}"
        assert [state.name for state in got.states] == [each.name for each in asked]


def test_bucket_requested_twice_pays_the_larger_cost(frozen: Limiter) -> None:
    """In any window no more is granted than the law allows."""
    dear, cheap = demand("1/s", burst=4, cost=3), demand("1/s", burst=4, cost=1)
    for both in ([dear, cheap], [cheap, dear]):
        assert frozen._asker.ask(each_bucket_once(both)).allowed
        assert frozen.peek(cheap.limit).remaining <= 1
        frozen.reset(cheap.limit)
