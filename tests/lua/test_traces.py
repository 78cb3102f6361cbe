"""Trace tables on the frozen clock: (time, cost, allowed, remaining, retry_after), one bucket each."""

from __future__ import annotations

import pytest
import redis

from celery_ratelimit import Limiter
from tests.conftest import START, Clock

from .frozen import demand, us

YES, NO = True, False

TABLES: dict[str, tuple[str, int, list[tuple[float, int, bool, int, float]]]] = {
    "burst 1 spreads evenly": (
        "10/s",
        1,
        [
            (0.0, 1, YES, 0, 0.0),
            (0.0, 1, NO, 0, 0.1),
            (0.05, 1, NO, 0, 0.05),
            (0.099999, 1, NO, 0, 0.000001),
            (0.1, 1, YES, 0, 0.0),
            (0.1, 1, NO, 0, 0.1),
            (0.35, 1, YES, 0, 0.0),  # what was not used is not saved up
            (0.35, 1, NO, 0, 0.1),
            (86_400.0, 1, YES, 0, 0.0),
            (86_400.0, 1, NO, 0, 0.1),
        ],
    ),
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
    "3/s, burst 1: an instant that is no whole microsecond is rounded up": (
        "3/s",
        1,
        [
            (0.0, 1, YES, 0, 0.0),
            (0.0, 1, NO, 0, 0.333334),
            (0.333333, 1, NO, 0, 0.000001),
            (0.333334, 1, YES, 0, 0.0),
            (0.666667, 1, NO, 0, 0.000001),
            (0.666668, 1, YES, 0, 0.0),
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
    "70000/s, burst 2": (
        "70000/s",
        2,
        [
            (0.0, 2, YES, 0, 0.0),
            (0.0, 1, NO, 0, 0.000015),  # 14 2/7
            (0.000014, 1, NO, 0, 0.000001),
            (0.000015, 1, YES, 0, 0.0),
            (0.000028, 1, NO, 0, 0.000001),  # 28 4/7
            (0.000029, 1, YES, 0, 0.0),
            (0.000042, 1, NO, 0, 0.000001),  # 42 6/7
            (0.000043, 1, YES, 0, 0.0),
            (0.000100, 2, YES, 0, 0.0),
            (0.000100, 1, NO, 0, 0.000015),
        ],
    ),
    "100000/s, burst 1000": (
        "100000/s",
        1000,
        [
            (0.0, 1000, YES, 0, 0.0),
            (0.0, 1, NO, 0, 0.00001),
            (0.000009, 1, NO, 0, 0.000001),
            (0.00001, 1, YES, 0, 0.0),
            (0.01001, 1000, YES, 0, 0.0),
            (0.01001, 1000, NO, 0, 0.01),
        ],
    ),
    "0.5/s": (
        "0.5/s",
        1,
        [(0.0, 1, YES, 0, 0.0), (0.5, 1, NO, 0, 1.5), (1.999999, 1, NO, 0, 0.000001), (2.0, 1, YES, 0, 0.0)],
    ),
    "7/m": (
        "7/m",
        7,
        [
            (0.0, 7, YES, 0, 0.0),
            (0.0, 1, NO, 0, 8.571429),
            (8.571428, 1, NO, 0, 0.000001),
            (8.571429, 1, YES, 0, 0.0),
            (60.0, 6, YES, 0, 0.0),
            (60.0, 7, NO, 0, 60.0),
        ],
    ),
    "1/day": (
        "1/day",
        1,
        [
            (0.0, 1, YES, 0, 0.0),
            (1.0, 1, NO, 0, 86_399.0),
            (86_399.999999, 1, NO, 0, 0.000001),
            (86_400.0, 1, YES, 0, 0.0),
            (86_400.0, 1, NO, 0, 86_400.0),
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
    "a clock that steps back by 0.1 s: what is kept stands still until it has caught up": (
        "10/s",
        2,
        [
            (0.1, 1, YES, 1, 0.0),
            (0.0, 1, NO, 0, 0.1),
            (0.05, 1, NO, 0, 0.05),
            (0.1, 1, YES, 0, 0.0),
            (0.1, 1, NO, 0, 0.1),
            (0.2, 1, YES, 0, 0.0),
            (0.15, 1, NO, 0, 0.15),
        ],
    ),
    "a clock that steps back by an hour: who was refused then is let in after his wait": (
        "1/s",
        1,
        [
            (3600.0, 1, YES, 0, 0.0),
            (0.0, 1, NO, 0, 1.0),
            (0.5, 1, NO, 0, 0.5),
            (0.999999, 1, NO, 0, 0.000001),
            (1.0, 1, YES, 0, 0.0),
            (3600.0, 1, YES, 0, 0.0),
        ],
    ),
}


@pytest.mark.parametrize("name", TABLES)
def test_table(frozen: Limiter, clock: Clock, name: str) -> None:
    rate, burst, rows = TABLES[name]
    for number, (time, cost, allowed, remaining, retry_after) in enumerate(rows):
        clock.set(START + us(time))
        got = frozen._asker.ask([demand(rate, burst=burst, cost=cost)])
        seen = (got.allowed, got.remaining, got.retry_after)
        assert seen == (allowed, remaining, retry_after), f"row {number}, at {time}"
        assert got.capacity == burst
        assert got.limited_by == (None if allowed else "api")


RATES = ("1/d", "7/m", "0.5/s", "3/s", "7/10s", "100/s", "999/s", "70000/s", "99999/s", "100000/s")


@pytest.mark.parametrize("burst", [1, 2, 7])
@pytest.mark.parametrize("rate", RATES)
def test_whoever_waits_as_told_gets_in_and_a_microsecond_less_does_not(
    frozen: Limiter, clock: Clock, rate: str, burst: int
) -> None:
    frozen._asker.ask([demand(rate, burst=burst, cost=burst)])
    for turn in range(12):
        wanted = [demand(rate, burst=burst, cost=1 + turn % burst)]
        told = frozen._asker.ask(wanted)
        assert not told.allowed
        assert frozen.peek(wanted[0].limit, cost=wanted[0].cost) == told
        clock.set(clock.us + us(told.retry_after) - 1)
        early = frozen._asker.ask(wanted)
        assert (early.allowed, us(early.retry_after)) == (False, 1)
        clock.set(clock.us + 1)
        assert frozen._asker.ask(wanted).allowed


def test_reset_after_is_when_the_bucket_is_full(frozen: Limiter, clock: Clock) -> None:
    rate, burst = "3/s", 6
    taken = frozen._asker.ask([demand(rate, burst=burst, cost=4)])
    assert (taken.remaining, us(taken.reset_after)) == (2, 1_333_334)
    clock.set(clock.us + 1_333_333)
    assert frozen._asker.ask([demand(rate, burst=burst, cost=burst)]).allowed is False
    clock.set(clock.us + 1)
    full = frozen._asker.ask([demand(rate, burst=burst, cost=burst)])
    assert (full.allowed, full.remaining, us(full.reset_after)) == (True, 0, 2_000_000)


def test_peek_answers_as_acquire_would_and_takes_nothing(frozen: Limiter, clock: Clock, store: redis.Redis) -> None:
    limit = demand("10/s", burst=2).limit
    for step in range(6):
        clock.set(START + 30_000 * step)
        before = dump(store)
        seen = [frozen.peek(limit) for _ in range(3)]
        assert dump(store) == before
        taken = frozen.acquire(limit)
        assert all((each.allowed, each.retry_after) == (taken.allowed, taken.retry_after) for each in seen)
        assert seen[0].remaining - taken.allowed == taken.remaining


def test_reset_fills_the_bucket_and_ends_the_line(frozen: Limiter, store: redis.Redis) -> None:
    wanted = [demand("1/m")]
    frozen._asker.ask(wanted)
    frozen._asker.ask(wanted, id="waiting", claim=1e6)
    other = [demand("1/m", name="other")]
    frozen._asker.ask(other)
    frozen.reset(wanted[0].limit)
    assert not store.exists("ratelimit:v1:{api}::state", "ratelimit:v1:{api}::slots")
    assert frozen._asker.ask(wanted).allowed
    assert not frozen._asker.ask(other).allowed


def dump(store: redis.Redis) -> dict[str, object]:
    """All that the store holds, times to live included."""
    kinds = {"string": store.get, "zset": lambda key: store.zrange(key, 0, -1, withscores=True), "hash": store.hgetall}
    return {key: kinds[store.type(key)](key) for key in store.scan_iter("*")}
