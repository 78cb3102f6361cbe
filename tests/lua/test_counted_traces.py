"""Traces of every algorithm, worked out by hand or published by others, and what random traces do not reach.

Slots, costs that are given back and steps of the clock: test_counted_model.py, test_counted_laws.py.
"""

from __future__ import annotations

import pytest
import redis

from celery_ratelimit import Limit, Limiter
from celery_ratelimit.limiter.limit_request import LimitRequest
from tests.conftest import START, Clock

from .frozen import answer, expiries, us

YES, NO = True, False
SECOND = 1_000_000


def limit(rate: str, algorithm: str = "token_bucket", name: str = "api", **options: object) -> Limit:
    return Limit(rate, algorithm=algorithm, name=name, **options)  # type: ignore[arg-type]


#: time, cost, allowed, remaining, retry_after, reset_after. START is a whole minute, hour and day.
TABLES: dict[str, tuple[Limit, list[tuple[float, int, bool, int, float, float]]]] = {
    "a window of the clock ends for all at once": (
        limit("2/3s", "fixed_window"),
        [
            (1.0, 1, YES, 1, 0.0, 2.0),
            (2.0, 1, YES, 0, 0.0, 1.0),
            (2.0, 1, NO, 0, 1.0, 1.0),
            (2.999999, 1, NO, 0, 0.000001, 0.000001),
            (3.0, 2, YES, 0, 0.0, 3.0),  # twice the count within 2 s, which is what this algorithm is
            (3.0, 1, NO, 0, 3.0, 3.0),
            (10.0, 1, YES, 1, 0.0, 2.0),
            (10.0, 2, NO, 1, 2.0, 2.0),
            (10.0, 1, YES, 0, 0.0, 2.0),
        ],
    ),
    "a window of its own begins with the first use": (
        limit("2/3s", "fixed_window", align="first"),
        [
            (1.0, 1, YES, 1, 0.0, 3.0),
            (2.0, 1, YES, 0, 0.0, 2.0),
            (3.999999, 1, NO, 0, 0.000001, 0.000001),
            (4.0, 1, YES, 1, 0.0, 3.0),
            (8.5, 1, YES, 1, 0.0, 3.0),
            (11.4, 2, NO, 1, 0.1, 0.1),
            (11.5, 2, YES, 0, 0.0, 3.0),
        ],
    ),
    "one sub-window: previous * (1 - x) + current, as in Cloudflare's example": (
        limit("50/m", "sliding_window", sub_windows=1),
        [
            (59.0, 42, YES, 8, 0.0, 61.0),
            (75.0, 18, YES, 0, 0.0, 105.0),  # 42 * 45/60 + 18 = 49.5
            (75.0, 1, NO, 0, 0.714286, 105.0),  # 42 * 44.2857/60 + 19 = 50
            (75.714285, 1, NO, 0, 0.000001, 104.285715),
            (75.714286, 1, YES, 0, 0.0, 104.285714),
        ],
    ),
    "sub-windows leave one by one": (
        limit("4/4s", "sliding_window", sub_windows=4),
        [
            (0.0, 4, YES, 0, 0.0, 5.0),
            (3.999999, 1, NO, 0, 0.250001, 1.000001),  # a quarter of the first second has to have left
            (4.25, 1, YES, 0, 0.0, 4.75),
            (4.25, 1, NO, 0, 0.25, 4.75),
            (4.75, 2, YES, 0, 0.0, 4.25),
            (4.999999, 1, NO, 0, 0.000001, 4.000001),
            (5.0, 1, YES, 0, 0.0, 5.0),
        ],
    ),
    "a log counts exactly": (
        limit("3/10s", "sliding_log"),
        [
            (0.0, 1, YES, 2, 0.0, 10.0),
            (4.0, 2, YES, 0, 0.0, 10.0),
            (9.999999, 1, NO, 0, 0.000001, 4.000001),
            (10.0, 2, NO, 1, 4.0, 4.0),  # half-open: what was taken at 0 has left at 10
            (10.0, 1, YES, 0, 0.0, 10.0),
            (14.0, 3, NO, 2, 6.0, 6.0),
            (14.0, 2, YES, 0, 0.0, 10.0),
            (20.0, 1, YES, 0, 0.0, 10.0),
            (100.0, 3, YES, 0, 0.0, 10.0),
        ],
    ),
    "tokens come in steps": (
        limit("2/10s", refill="interval", burst=5),
        [
            (1.0, 4, YES, 1, 0.0, 20.0),  # the steps count from the first use
            (1.0, 3, NO, 1, 10.0, 20.0),
            (10.999999, 3, NO, 1, 0.000001, 10.000001),
            (11.0, 3, YES, 0, 0.0, 30.0),
            (12.0, 1, NO, 0, 9.0, 29.0),
            (21.0, 1, YES, 1, 0.0, 20.0),
            (40.9, 5, NO, 3, 0.1, 0.1),
            (41.0, 5, YES, 0, 0.0, 30.0),
            (1_000.0, 5, YES, 0, 0.0, 30.0),
        ],
    ),
    "debt: one permit must be there, the rest is paid by later calls": (
        limit("1/s", burst=2, debt=3),
        [
            (0.0, 5, YES, 0, 0.0, 5.0),  # 3 below zero
            (0.0, 1, NO, 0, 4.0, 5.0),
            (3.999999, 1, NO, 0, 0.000001, 1.000001),
            (4.0, 4, YES, 0, 0.0, 5.0),
            (8.0, 5, NO, 1, 1.0, 1.0),  # 4 below zero would be too many
            (9.0, 5, YES, 0, 0.0, 5.0),
        ],
    ),
    "a leaky bucket lets one through at a time": (
        limit("2/s", "leaky_bucket"),
        [
            (0.0, 1, YES, 0, 0.0, 0.5),
            (0.0, 1, NO, 0, 0.5, 0.5),
            (0.499999, 1, NO, 0, 0.000001, 0.000001),
            (0.5, 1, YES, 0, 0.0, 0.5),
            (60.0, 1, YES, 0, 0.0, 0.5),
            (60.0, 1, NO, 0, 0.5, 0.5),
        ],
    ),
}


@pytest.mark.parametrize("name", TABLES)
def test_hand_worked_trace(frozen: Limiter, clock: Clock, name: str) -> None:
    wanted, rows = TABLES[name]
    for number, (time, cost, allowed, remaining, retry_after, reset_after) in enumerate(rows):
        clock.set(START + us(time))
        got = frozen.acquire(wanted, cost=cost)
        seen = (got.allowed, got.remaining, got.retry_after, got.reset_after)
        assert seen == (allowed, remaining, retry_after, reset_after), f"row {number}, at {time}"
        assert (got.limited_by, got.queue_full) == (None if allowed else "api", False)


def test_warm_up_matches_guava(frozen: Limiter, clock: Clock) -> None:
    """Guava's RateLimiterTest.testWarmUp: 2/s, 4 s, cold factor 3; it prints R1.38 for 1.375, and so on."""
    wanted = [LimitRequest(limit("2/s", warmup=4.0), "api")]

    def paced() -> list[float]:
        waits = []
        for _ in range(8):
            decision = frozen._asker.ask(wanted, horizon=1e6)
            assert decision.allowed
            clock.advance(decision.retry_after)
            waits.append(decision.retry_after)
        clock.advance(0.5)  # to repay the last
        return waits

    cold = [0.0, 1.375, 1.125, 0.875, 0.625, 0.5, 0.5, 0.5]
    assert paced() == cold
    clock.advance(4.0)
    assert paced() == cold
    clock.advance(2.0)  # not cold yet: it stands at the threshold
    assert paced() == [0.0, *[0.5] * 7]


def test_full_leaky_queue_refuses_and_says_when_it_has_room(frozen: Limiter, clock: Clock) -> None:
    two = [LimitRequest(limit("1/s", "leaky_bucket", capacity=2), "api")]

    def ask(id: str, horizon: float = 0.0) -> tuple[bool, float, bool]:
        decision = frozen._asker.ask(two, id=id, claim=1e6, horizon=horizon)
        return decision.allowed, decision.retry_after, decision.queue_full

    assert ask("a") == (YES, 0.0, False)
    assert ask("b") == (NO, 1.0, False)
    assert ask("c") == (NO, 2.0, False)
    assert ask("d") == (NO, 1.0, True), "at 1.0 b leaves the queue"
    assert ask("d", horizon=60.0) == (NO, 1.0, True), "nor may it take a permit behind the queue"
    assert ask("c") == (NO, 2.0, False), "c is in the queue"
    clock.advance(0.999999)
    assert ask("d") == (NO, 0.000001, True)
    clock.advance(0.000001)
    assert ask("b") == (YES, 0.0, False)
    assert ask("d") == (NO, 2.0, False)
    assert ask("e") == (NO, 1.0, True)


EVERY = {
    "token bucket": limit("1/s"),
    "leaky bucket": limit("1/s", "leaky_bucket"),
    "clock": limit("1/s", "fixed_window"),
    "first": limit("1/s", "fixed_window", align="first"),
    "sliding window": limit("1/s", "sliding_window", sub_windows=1),
    "log": limit("1/s", "sliding_log"),
    "stepped": limit("1/s", refill="interval"),
    "warm-up": limit("1/s", warmup=0.000001),
}


#: Under warm-up nothing comes back: a call's price is paid by the next one.
GIVES_BACK = [name for name in EVERY if name != "warm-up"]


@pytest.mark.parametrize("name", GIVES_BACK)
def test_reservation_is_idempotent_and_cancelled_once(frozen: Limiter, clock: Clock, name: str) -> None:
    wanted = EVERY[name]
    assert frozen.acquire(wanted).allowed
    first = frozen.reserve(wanted, id="r", horizon=10.0)
    assert first.allowed
    assert first.retry_after >= 1.0
    assert first._granted_at == clock.us + us(first.retry_after)
    assert first.id == "r"
    assert frozen.reserve(wanted, id="r", horizon=10.0) == first, "the same again"
    clock.advance(0.25)
    later = frozen.reserve(wanted, id="r", horizon=0.0)
    assert answer(later) == (True, us(first.retry_after) - 250_000), "it was let in already"
    before = frozen.peek(wanted)
    assert frozen.cancel(wanted, id="r")
    assert frozen.peek(wanted).retry_after < before.retry_after
    taken = frozen.reserve(wanted, id="s", horizon=10.0)
    assert 0 <= taken._granted_at - first._granted_at <= 1, "now it is another's, but for rounding"
    assert not frozen.cancel(wanted, id="r"), "given back once"
    again = frozen.reserve(wanted, id="r", horizon=10.0)
    assert again._granted_at > first._granted_at
    assert frozen.cancel(wanted, id="r"), "a new one of that name"


def test_reservation_is_known_for_an_hour_after_its_time(frozen: Limiter, clock: Clock, store: redis.Redis) -> None:
    wanted = limit("1/s")
    frozen.acquire(wanted)
    frozen.reserve(wanted, id="r", horizon=10.0)
    clock.advance(3_600.999)
    frozen.reserve(wanted, id="other", horizon=10.0)
    assert frozen.reserve(wanted, id="r", horizon=10.0).retry_after == 0.0
    assert frozen.acquire(wanted).retry_after == 1.0, "only the other took one"
    clock.advance(1.001)
    assert frozen.reserve(wanted, id="third", horizon=10.0).allowed
    assert not frozen.cancel(wanted, id="r")
    assert all(store.pttl(key) > 0 for key in store.scan_iter("ratelimit:*"))


def test_settled_reservation_cannot_be_cancelled(frozen: Limiter) -> None:
    wanted = limit("1/s", burst=6)
    frozen.acquire(wanted, cost=3)
    booked = frozen.reserve(wanted, id="r", horizon=0.0, cost=3)
    assert frozen.settle(booked, 0)
    assert frozen.peek(wanted).remaining == 3
    frozen.cancel(wanted, id="r", cost=3)
    assert frozen.peek(wanted).remaining == 3, "three are in use"


def test_settle_gives_back_nothing_behind_a_later_reservation(frozen: Limiter, clock: Clock) -> None:
    """Two permits at one instant otherwise: that of B, and the one given back."""
    for wanted in (EVERY["token bucket"], EVERY["leaky bucket"], EVERY["warm-up"], EVERY["log"]):
        frozen.reset(wanted)
        a = frozen.acquire(wanted)
        b = frozen.reserve(wanted, id="b", horizon=10.0)
        assert b.retry_after >= 1.0
        frozen.settle(a, 0)
        third = frozen.reserve(wanted, id="c", horizon=10.0)
        assert third._granted_at - b._granted_at >= SECOND
        frozen.cancel(wanted, id="b")
        frozen.cancel(wanted, id="c")


def test_settle_does_not_overfill_a_bucket_that_was_full_at_the_joint_time(frozen: Limiter, clock: Clock) -> None:
    five, slow = limit("1/s", burst=5), limit("1/3s", name="slow")
    frozen.acquire(slow)
    a = frozen.acquire(five)
    assert frozen.acquire([five, slow]).retry_after == 3.0
    assert frozen._asker.ask([LimitRequest(five, "api"), LimitRequest(slow, "slow")], horizon=60.0).retry_after == 3.0
    frozen.settle(a, 0)
    clock.advance(3.0)
    assert not frozen.acquire(five, cost=5).allowed, "one goes at this instant already"
    assert frozen.acquire(five, cost=4).allowed


def test_two_settles_do_not_overfill_a_bucket(frozen: Limiter, clock: Clock) -> None:
    ten = limit("1/s", burst=10)
    first, second = (frozen.acquire(ten, cost=5) for _ in range(2))
    clock.advance(5.0)
    assert frozen.acquire(ten).allowed
    for each in (first, second):
        frozen.settle(each, 0)
    assert not frozen.acquire(ten, cost=10).allowed, "one was taken at this instant"


SHORT = {
    "clock": limit("1/0.00001s", "fixed_window"),
    "first": limit("1/0.00001s", "fixed_window", align="first"),
    "sliding window": limit("1/0.00001s", "sliding_window", sub_windows=1),
    "log": limit("1/0.00001s", "sliding_log"),
    "stepped": limit("1/0.00001s", refill="interval"),
    "leaky": limit("100000/s", "leaky_bucket"),
    "warm-up": limit("100000/s", warmup=0.000001),
}


@pytest.mark.parametrize("name", SHORT)
def test_window_of_microseconds_is_not_unlimited(frozen: Limiter, clock: Clock, store: redis.Redis, name: str) -> None:
    assert frozen.acquire(SHORT[name]).allowed
    refused = frozen.acquire(SHORT[name])
    assert not refused.allowed
    assert 10 <= us(refused.retry_after) <= 20
    assert set(expiries(store).values()) == {clock.us + 101_000}, "no time to live rounds to nothing"
    clock.set(clock.us + us(refused.retry_after))
    assert frozen.acquire(SHORT[name]).allowed


@pytest.mark.parametrize("name", EVERY)
def test_refusal_takes_nothing_and_keeps_the_wait(frozen: Limiter, clock: Clock, store: redis.Redis, name: str) -> None:
    wanted, open_ = EVERY[name], limit("5/m", "sliding_log", name="open")
    assert frozen.acquire(wanted).allowed
    wait = us(frozen.peek(wanted).retry_after)
    before = {key: store.dump(key) for key in store.scan_iter("ratelimit:*")}
    for part in range(10):
        clock.set(START + wait * part // 10)
        refused = frozen.acquire([open_, wanted])
        assert (refused.allowed, refused.limited_by, us(refused.retry_after)) == (NO, "api", wait - wait * part // 10)
    assert {key: store.dump(key) for key in store.scan_iter("ratelimit:*")} == before
    clock.set(START + wait)
    assert frozen.acquire([open_, wanted]).states[0].remaining == 4


@pytest.mark.parametrize("name", EVERY)
def test_keys_expire_a_second_after_the_last_slot(frozen: Limiter, clock: Clock, store: redis.Redis, name: str) -> None:
    wanted = [LimitRequest(EVERY[name], "api")]
    for id in "abc":
        frozen._asker.ask(wanted, id=id, claim=60.0)
    last = max(expiries(store).values())
    assert START + 3 * SECOND <= last <= START + 7 * SECOND, "a second after the last slot"
    clock.set(last)
    assert frozen._asker.ask(wanted).allowed
    assert len(list(store.scan_iter("ratelimit:*"))) == 1
    for _ in range(50):
        clock.advance(2.0)
        assert frozen._asker.ask(wanted).allowed
    key = next(iter(store.scan_iter("ratelimit:*")))
    size = store.memory_usage(key)
    assert size is None or size < 500, "a log drops what has left"


def test_log_written_twice_in_one_decision_keeps_its_entries(frozen: Limiter, clock: Clock, store: redis.Redis) -> None:
    """A pause has ended, two entries have passed, and a request keeps a slot: each of these has the log written."""
    log = limit("3/s", "sliding_log")
    for seconds in (0.0, 0.1, 0.2):
        clock.set(START + us(seconds))
        assert frozen._asker.ask([LimitRequest(log, "api")]).allowed
    assert not frozen._asker.ask([LimitRequest(log, "api")], id="waits", claim=10).allowed
    frozen.pause("api", 60, force=True)
    clock.set(START + us(1.15))
    frozen.resume("api", force=True)
    assert not frozen._asker.ask([LimitRequest(log, "api", "", 3)], id="large", claim=10).allowed
    _, *entries = store.lrange("ratelimit:v1:{api}::state", 0, -1)
    assert [(int(at) - START, cost) for at, cost in zip(entries[::2], entries[1::2], strict=True)] == [(200_000, "1")]
