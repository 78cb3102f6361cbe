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
    "a clock that steps back by an hour: a refused call is granted after its wait": (
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
def test_hand_worked_trace(frozen: Limiter, clock: Clock, name: str) -> None:
    rate, burst, rows = TABLES[name]
    for number, (time, cost, allowed, remaining, retry_after) in enumerate(rows):
        clock.set(START + us(time))
        got = frozen._asker.ask([demand(rate, burst=burst, cost=cost)])
        seen = (got.allowed, got.remaining, got.retry_after)
        assert seen == (allowed, remaining, retry_after), f"row {number}, at {time}"
        assert got.capacity == burst
        assert got.limited_by == (None if allowed else "api")


def test_peek_answers_like_acquire_and_takes_nothing(frozen: Limiter, clock: Clock, store: redis.Redis) -> None:
    limit = demand("10/s", burst=2).limit
    for step in range(6):
        clock.set(START + 30_000 * step)
        before = dump(store)
        seen = [frozen.peek(limit) for _ in range(3)]
        assert dump(store) == before
        taken = frozen.acquire(limit)
        assert all((each.allowed, each.retry_after) == (taken.allowed, taken.retry_after) for each in seen)
        assert seen[0].remaining - taken.allowed == taken.remaining


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


def dump(store: redis.Redis) -> dict[str, object]:
    """All that the store holds, times to live included."""
    kinds = {"string": store.get, "zset": lambda key: store.zrange(key, 0, -1, withscores=True), "hash": store.hgetall}
    return {key: kinds[store.type(key)](key) for key in store.scan_iter("*")}
