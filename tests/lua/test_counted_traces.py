"""Trace tables of the algorithms that count permits, worked out by hand; printed runs of others; others' bugs."""

from __future__ import annotations

import pytest
import redis

from celery_ratelimit import ConfigurationError, Decision, ImpossibleRequest, Limit, Limiter
from celery_ratelimit.limiter.limit_request import LimitRequest
from tests.asking import settle_demands
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
    "a window of a day in UTC": (
        limit("1/d", "fixed_window"),
        [
            (86_399.0, 1, YES, 0, 0.0, 1.0),
            (86_399.5, 1, NO, 0, 0.5, 0.5),
            (86_400.0, 1, YES, 0, 0.0, 86_400.0),
        ],
    ),
    "a step back of the clock does not lengthen a wait": (
        limit("1/10s", "fixed_window"),
        [
            (3_604.0, 1, YES, 0, 0.0, 6.0),
            (3_604.0, 1, NO, 0, 6.0, 6.0),
            (4.0, 1, NO, 0, 6.0, 6.0),
            (10.0, 1, YES, 0, 0.0, 10.0),
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
    "a log whose clock steps back by an hour keeps its own time": (
        limit("1/10s", "sliding_log"),
        [
            (3_600.0, 1, YES, 0, 0.0, 10.0),
            (0.0, 1, NO, 0, 10.0, 10.0),
            (6.0, 1, NO, 0, 4.0, 4.0),
            (10.0, 1, YES, 0, 0.0, 10.0),
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
    "debt: one permit must be there, the rest is paid by those who come next": (
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
def test_table(frozen: Limiter, clock: Clock, name: str) -> None:
    wanted, rows = TABLES[name]
    for number, (time, cost, allowed, remaining, retry_after, reset_after) in enumerate(rows):
        clock.set(START + us(time))
        got = frozen.acquire(wanted, cost=cost)
        seen = (got.allowed, got.remaining, got.retry_after, got.reset_after)
        assert seen == (allowed, remaining, retry_after, reset_after), f"row {number}, at {time}"
        assert (got.limited_by, got.queue_full) == (None if allowed else "api", False)


# -- Printed runs of others --------------------------------------------------------------------------------------------


def test_a_rolling_log_of_two_windows(frozen: Limiter, clock: Clock) -> None:
    """1/s and 5/min together. The refusal at 1710 must not count in the longer window, or 1714 would be the sixth; 1710
    to 1714 are five calls in 4 s, all that a minute has, and 1776 is 62 s after the last. The source prints the same.
    """
    both = [limit("1/s", "sliding_log", "second"), limit("5/m", "sliding_log", "minute")]
    printed = [
        (1710, YES, None, 0),
        (1710, NO, "second", 1),
        (1711, YES, None, 0),
        (1712, YES, None, 0),
        (1713, YES, None, 0),
        (1714, YES, None, 0),
        (1715, NO, "minute", 55),  # until 1770
        (1776, YES, None, 0),
    ]
    for at, allowed, binding, wait in printed:
        clock.set(START + at * SECOND)
        got = frozen.acquire(both)
        assert (got.allowed, got.limited_by, got.retry_after) == (allowed, binding, wait), at
    assert [state.remaining for state in got.states] == [0, 4]


def test_a_fixed_window_from_the_first_use(frozen: Limiter, clock: Clock) -> None:
    """2 in 3 s: yes, yes, no, 3 s later yes, yes, 2 s later no."""
    window = limit("2/3s", "fixed_window", align="first")
    seen = []
    for at in (0.7, 0.7, 0.7, 3.7, 3.7, 5.7):
        clock.set(START + us(at))
        seen.append(frozen.acquire(window).allowed)
    assert seen == [YES, YES, NO, YES, YES, NO]


def paced(frozen: Limiter, clock: Clock, wanted: Limit, calls: int) -> list[float]:
    """What each of so many calls waits for, as Guava's ``acquire`` does."""
    waits = []
    for _ in range(calls):
        decision = frozen._asker.ask([LimitRequest(wanted, "api")], horizon=1e6)
        assert decision.allowed
        clock.set(clock.us + us(decision.retry_after))
        waits.append(decision.retry_after)
    return waits


def test_warm_up_is_guavas(frozen: Limiter, clock: Clock) -> None:
    """Guava's RateLimiterTest.testWarmUp: 2/s, 4 s, cold factor 3; it prints R1.38 for 1.375, and so on."""
    wanted = limit("2/s", warmup=4.0)
    cold = [0.0, 1.375, 1.125, 0.875, 0.625, 0.5, 0.5, 0.5]
    assert paced(frozen, clock, wanted, 8) == cold
    clock.advance(0.5)  # to repay the last
    clock.advance(4.0)  # it is cold again
    assert paced(frozen, clock, wanted, 8) == cold
    clock.advance(0.5)
    clock.advance(2.0)  # not cold yet: it stands at the threshold
    assert paced(frozen, clock, wanted, 8) == [0.0, *[0.5] * 7]


def test_warm_up_by_hand(frozen: Limiter, clock: Clock) -> None:
    """5/s, 2 s: 0.2 s between permits; the threshold is 0.5 * 2 / 0.2 = 5 permits, cold 5 + 2 * 2 / (0.2 + 0.6) = 10.
    From there intervals fall from 0.6 to 0.2 s in five permits, each a mean: 0.56, 0.48, ... 0.24, 2 s in all.
    """
    assert paced(frozen, clock, limit("5/s", warmup=2.0), 9) == [0.0, 0.56, 0.48, 0.40, 0.32, 0.24, 0.2, 0.2, 0.2]


def test_a_call_under_warm_up_is_paid_by_the_next(frozen: Limiter, clock: Clock) -> None:
    wanted = limit("5/s", warmup=2.0, burst=5)
    assert answer(frozen.acquire(wanted, cost=5)) == (True, 0)
    assert answer(frozen.acquire(wanted)) == (False, 2 * SECOND), "the five dear ones, 2 s"
    clock.advance(2.0)
    assert answer(frozen.acquire(wanted, cost=5)) == (True, 0)
    assert answer(frozen.acquire(wanted)) == (False, SECOND), "five at 0.2 s"


# -- The line, and the leaky bucket's end of it ------------------------------------------------------------------------


LINES = {
    "clock": (limit("2/10s", "fixed_window"), [10, 10, 20, 20, 30], 30),
    "first": (limit("2/10s", "fixed_window", align="first"), [10, 10, 20, 20, 30], 30),
    "log": (limit("2/10s", "sliding_log"), [10, 10, 20, 20, 30], 30),
    "stepped": (limit("2/10s", refill="interval", burst=2), [10, 10, 20, 20, 30], 30),
    "leaky": (limit("2/10s", "leaky_bucket"), [10, 15, 20, 25, 30], 35),
}


@pytest.mark.parametrize("name", LINES)
def test_a_line_of_slots(frozen: Limiter, clock: Clock, name: str) -> None:
    wanted, slots, end = LINES[name]
    demands = [LimitRequest(wanted, "api")]

    def asks(at: float, id: str = "") -> tuple[bool, float]:
        clock.set(START + us(at))
        decision = frozen._asker.ask(demands, id=id, claim=1e6)
        return decision.allowed, decision.retry_after

    assert asks(0) == (YES, 0.0)
    assert asks(5 if name == "leaky" else 0) == (YES, 0.0)
    assert [asks(5, id) for id in "abcde"] == [(NO, slot - 5) for slot in slots]
    assert asks(6, "d") == (NO, slots[3] - 6), "it comes early: its slot stands"
    assert asks(slots[0]) == (NO, end - slots[0]), "there is enough, and it is for those who wait"
    frozen._asker.forget(demands, id="e")
    assert [asks(slot, id) for slot, id in zip(slots, "abcd", strict=False)] == [(YES, 0.0)] * 4
    assert asks(slots[3]) == (NO, slots[4] - slots[3]), "nobody is left in line"


def test_who_comes_late_goes_before_those_behind_it_and_a_dead_one_is_given_up_after_a_second(
    frozen: Limiter, clock: Clock
) -> None:
    demands = [LimitRequest(limit("1/10s", "sliding_log"), "api")]

    def asks(at: float, id: str = "") -> tuple[bool, float]:
        clock.set(START + us(at))
        decision = frozen._asker.ask(demands, id=id, claim=1e6)
        return decision.allowed, decision.retry_after

    assert asks(0) == (YES, 0.0)
    assert [asks(0, id) for id in "abc"] == [(NO, 10.0), (NO, 20.0), (NO, 30.0)]
    assert asks(11.0) == (NO, 30.0), "a is a second late to the microsecond: its place is kept, and two more are due"
    assert asks(11.0, "a") == (YES, 0.0)
    assert asks(20.0, "b") == (NO, 1.0), "a came late, so b is too early"
    assert asks(22.000001) == (YES, 0.0), "b has not come: its place is taken"
    assert asks(22.000001) == (NO, 20.0), "once; the next is for c"
    assert asks(22.000001, "b") == (NO, 20.0), "b is a newcomer now, behind c"


def test_a_slot_no_further_away_than_the_claim_is_kept(frozen: Limiter) -> None:
    demands = [LimitRequest(limit("1/10s", "sliding_log"), "api")]
    frozen._asker.ask(demands)
    waits = [
        frozen._asker.ask(demands, id=id, claim=claim).retry_after
        for id, claim in (("a", 9.999999), ("b", 10.0), ("c", 20))
    ]
    assert waits == [10.0, 10.0, 20.0], "a kept none"


def test_a_gap_that_was_given_back_is_filled_where_nobody_has_to_wait_for_it(frozen: Limiter, clock: Clock) -> None:
    demands = [LimitRequest(limit("2/10s", refill="interval", burst=2), "api")]
    assert frozen._asker.ask([LimitRequest(demands[0].limit, "api", "", 2)]).allowed
    for id in "abc":
        frozen._asker.ask(demands, id=id, claim=1e6)
    frozen._asker.forget(demands, id="a")
    frozen._asker.forget(demands, id="b")
    clock.advance(10.0)
    assert frozen._asker.ask(demands).allowed, "c is due at 20, and there will be two"
    assert frozen._asker.ask(demands).allowed
    assert not frozen._asker.ask(demands).allowed
    clock.advance(10.0)
    assert frozen._asker.ask(demands, id="c").allowed


def queue(capacity: int | None) -> list[LimitRequest]:
    return [LimitRequest(limit("1/s", "leaky_bucket", capacity=capacity), "api")]


def ask(frozen: Limiter, demands: list[LimitRequest], id: str = "", horizon: float = 0.0) -> tuple[bool, float, bool]:
    decision: Decision = frozen._asker.ask(demands, id=id, claim=1e6, horizon=horizon)
    return decision.allowed, decision.retry_after, decision.queue_full


def test_a_full_queue_refuses_at_once_and_says_when_there_will_be_room(frozen: Limiter, clock: Clock) -> None:
    two = queue(2)
    assert ask(frozen, two, "a") == (YES, 0.0, False)
    assert ask(frozen, two, "b") == (NO, 1.0, False)
    assert ask(frozen, two, "c") == (NO, 2.0, False)
    assert ask(frozen, two, "d") == (NO, 1.0, True), "at 1.0 b leaves the queue"
    assert ask(frozen, two, "d", horizon=60.0) == (NO, 1.0, True), "nor may it take a permit behind the queue"
    assert ask(frozen, two, "c") == (NO, 2.0, False), "c is in the queue"
    clock.advance(0.999999)
    assert ask(frozen, two, "d") == (NO, 0.000001, True)
    clock.advance(0.000001)
    assert ask(frozen, two, "b") == (YES, 0.0, False)
    assert ask(frozen, two, "d") == (NO, 2.0, False)
    assert ask(frozen, two, "e") == (NO, 1.0, True)


def test_capacity_0_is_no_queue_and_none_has_no_end(frozen: Limiter) -> None:
    assert ask(frozen, queue(0)) == (YES, 0.0, False)
    assert ask(frozen, queue(0), "a") == (NO, 1.0, True)
    assert ask(frozen, queue(0), "a", horizon=60.0) == (NO, 1.0, True)
    assert [ask(frozen, queue(None), str(i))[1:] for i in range(100)] == [(i + 1.0, False) for i in range(100)]


# -- Reserve, cancel, settle -------------------------------------------------------------------------------------------

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


@pytest.mark.parametrize("name", EVERY)
def test_a_small_step_back_of_the_clock_is_waited_for_and_after_a_larger_one_no_time_has_passed(
    frozen: Limiter, clock: Clock, name: str
) -> None:
    wanted = EVERY[name]
    assert frozen.acquire(wanted).allowed
    wait = us(frozen.acquire(wanted).retry_after)
    for back in (1, 100_000):
        clock.set(START - back)
        assert answer(frozen.peek(wanted)) == (NO, wait + back)
    clock.set(START - 100_001)
    assert answer(frozen.peek(wanted)) == (NO, wait)
    assert answer(frozen.acquire(wanted)) == (NO, wait)
    clock.set(START - 100_001 + wait - 1)
    assert answer(frozen.acquire(wanted)) == (NO, 1)
    clock.set(START - 100_001 + wait)
    assert frozen.acquire(wanted).allowed


def test_a_log_does_not_forget_for_a_clock_that_steps_back_a_little(frozen: Limiter, clock: Clock) -> None:
    """What has left is cut off when somebody leaves the line, at a time that the clock has not reached again."""
    wanted = limit("1/s", "sliding_log")
    assert frozen.acquire(wanted).allowed
    assert not frozen._asker.ask([LimitRequest(wanted, "api")], id="a", claim=10.0).allowed
    clock.set(START + SECOND)
    frozen._asker.forget([LimitRequest(wanted, "api")], id="a")
    clock.set(START + SECOND - 100)
    assert answer(frozen.acquire(wanted)) == (NO, 100)
    clock.set(START + SECOND)
    assert frozen.acquire(wanted).allowed


@pytest.mark.parametrize("name", GIVES_BACK)
def test_a_reservation_is_found_again_and_given_back_once(frozen: Limiter, clock: Clock, name: str) -> None:
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


@pytest.mark.parametrize("name", GIVES_BACK)
def test_a_call_is_settled_once_either_way(frozen: Limiter, clock: Clock, name: str) -> None:
    wanted = [LimitRequest(EVERY[name], "api")]
    decision = frozen.acquire(EVERY[name])
    assert frozen.peek(EVERY[name]).retry_after >= 1.0
    assert settle_demands(frozen, wanted, [0], id=decision.id, granted_at=decision._granted_at)
    waits = us(frozen.peek(EVERY[name]).retry_after)
    assert waits <= 1, "what the first permit cost more than others, under warm-up, is not given back"
    for actual in (0, 5):
        assert not settle_demands(frozen, wanted, [actual], id=decision.id, granted_at=decision._granted_at)
        assert us(frozen.peek(EVERY[name]).retry_after) == waits, "whatever is said later does not count"


@pytest.mark.parametrize(
    ("name", "wait"),
    [
        *((name, 5 * SECOND) for name in ("token bucket", "leaky bucket", "clock", "first", "stepped")),
        ("warm-up", 5 * SECOND + 1),
        # These look no further back than their window.
        ("log", SECOND),
        ("sliding window", 2 * SECOND),
    ],
)
def test_what_was_overdrawn_is_paid_by_those_who_come_next(frozen: Limiter, clock: Clock, name: str, wait: int) -> None:
    """1/s: one was taken, and five were used."""
    wanted = EVERY[name]
    assert frozen.settle(frozen.acquire(wanted), 5)
    assert answer(frozen.peek(wanted)) == (NO, wait)
    for before in (3 * wait // 4, wait // 2, 1):
        clock.set(START + wait - before)
        assert answer(frozen.acquire(wanted)) == (NO, before)
    clock.set(START + wait)
    assert frozen.acquire(wanted).allowed


def test_a_reservation_is_known_for_an_hour_after_its_time(frozen: Limiter, clock: Clock, store: redis.Redis) -> None:
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


def test_cancel_and_settle_of_several_limits_are_all_or_none(frozen: Limiter) -> None:
    every = [limit("1/s", name="a"), limit("2/s", "sliding_log", name="b"), limit("3/s", "fixed_window", name="c")]
    assert frozen.reserve(every, id="r", horizon=0.0).allowed
    assert not frozen.reserve(every, id="s", horizon=0.5).allowed
    assert [state.remaining for state in frozen.peek(every).states] == [0, 1, 2]
    assert frozen.cancel(every, id="r")
    assert [state.remaining for state in frozen.peek(every).states] == [1, 2, 3]
    decision = frozen.acquire(every)
    assert frozen.settle(decision, 0)
    assert [state.remaining for state in frozen.peek(every).states] == [1, 2, 3]


def test_a_settled_reservation_cannot_be_cancelled_on_top(frozen: Limiter) -> None:
    wanted = limit("1/s", burst=6)
    frozen.acquire(wanted, cost=3)
    booked = frozen.reserve(wanted, id="r", horizon=0.0, cost=3)
    assert frozen.settle(booked, 0)
    assert frozen.peek(wanted).remaining == 3
    frozen.cancel(wanted, id="r", cost=3)
    assert frozen.peek(wanted).remaining == 3, "three are in use"


# -- What goes back is never more than the law leaves ------------------------------------------------------------------


def test_what_others_took_behind_it_cannot_be_given_back(frozen: Limiter, clock: Clock) -> None:
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


def test_a_bucket_that_another_limit_keeps_waiting_is_full_by_then(frozen: Limiter, clock: Clock) -> None:
    five, slow = limit("1/s", burst=5), limit("1/10s", name="slow")
    frozen.acquire(slow)
    a = frozen.acquire(five)
    assert (
        frozen._asker.ask([LimitRequest(five, "api", "", 3), LimitRequest(slow, "slow")], horizon=60.0).retry_after
        == 10.0
    )
    frozen.settle(a, 0)
    clock.advance(10.0)
    assert not frozen.acquire(five, cost=3).allowed, "three go at 10 s already: six would be one too many"
    assert frozen.acquire(five, cost=2).allowed


def test_a_bucket_that_was_full_when_another_limit_let_it_take_cannot_be_fuller(frozen: Limiter, clock: Clock) -> None:
    five, slow = limit("1/s", burst=5), limit("1/3s", name="slow")
    frozen.acquire(slow)
    a = frozen.acquire(five)
    assert frozen.acquire([five, slow]).retry_after == 3.0
    assert frozen._asker.ask([LimitRequest(five, "api"), LimitRequest(slow, "slow")], horizon=60.0).retry_after == 3.0
    frozen.settle(a, 0)
    clock.advance(3.0)
    assert not frozen.acquire(five, cost=5).allowed, "one goes at this instant already"
    assert frozen.acquire(five, cost=4).allowed


def test_a_reservation_before_another_limits_gives_nothing_back_behind_it(frozen: Limiter, clock: Clock) -> None:
    five, ten, twelve = limit("1/s", burst=5), limit("1/10s", name="ten"), limit("1/12s", name="twelve")
    frozen.acquire([ten, twelve])
    assert frozen.reserve([five, ten], id="r", horizon=60.0).retry_after == 10.0
    three = [LimitRequest(five, "api", "", 3), LimitRequest(twelve, "twelve")]
    assert frozen._asker.ask(three, horizon=60.0).retry_after == 12.0
    frozen.cancel([five, ten], id="r")
    clock.advance(12.001)
    assert not frozen.acquire(five, cost=3).allowed, "three went a millisecond ago"
    assert frozen.acquire(five, cost=2).allowed


def test_permits_given_back_twice_over_half_a_bucket_are_counted_once(frozen: Limiter, clock: Clock) -> None:
    ten = limit("1/s", burst=10)
    first, second = (frozen.acquire(ten, cost=5) for _ in range(2))
    clock.advance(5.0)
    assert frozen.acquire(ten).allowed
    for each in (first, second):
        frozen.settle(each, 0)
    assert not frozen.acquire(ten, cost=10).allowed, "one was taken at this instant"


def test_an_overdraft_counts_as_use_when_something_else_is_given_back(frozen: Limiter, clock: Clock) -> None:
    ten = limit("1/s", burst=10)
    one, other = (frozen.acquire(ten, cost=3) for _ in range(2))
    clock.advance(5.0)
    frozen.settle(other, 12)
    frozen.settle(one, 0)
    assert not frozen.acquire(ten, cost=2).allowed, "nine more were used at this instant"


def test_a_window_is_opened_by_a_use_and_by_nothing_else(frozen: Limiter, clock: Clock) -> None:
    wanted, slow = limit("1/10s", "fixed_window", align="first"), limit("1/9s", name="slow")
    assert frozen.reserve(wanted, id="r", horizon=0.0).allowed
    assert frozen.cancel(wanted, id="r")
    clock.advance(9.0)
    assert answer(frozen.acquire(wanted)) == (YES, 0)
    assert answer(frozen.acquire(wanted)) == (NO, 10 * SECOND), "from now on, not from the use that was given back"
    frozen.reset(wanted)
    frozen.acquire(slow)
    assert frozen._asker.ask([LimitRequest(wanted, "api"), LimitRequest(slow, "slow")], horizon=60.0).retry_after == 9.0
    assert answer(frozen.acquire(wanted)) == (NO, 19 * SECOND), "from the time that it is used at"


@pytest.mark.parametrize("name", EVERY)
def test_what_was_used_is_not_forgotten_for_a_reservation_that_was_cancelled(
    frozen: Limiter, clock: Clock, name: str
) -> None:
    wanted, slow = EVERY[name], limit("1/10s", name="slow")
    assert frozen.acquire([wanted, slow]).allowed
    assert frozen.reserve([wanted, slow], id="r", horizon=60.0).retry_after == 10.0
    assert frozen.cancel([wanted, slow], id="r")
    for _ in range(3):
        assert not frozen.acquire(wanted).allowed
        clock.advance(0.002)


# -- Others' bugs ------------------------------------------------------------------------------------------------------

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
def test_a_window_of_microseconds_does_not_mean_unlimited(
    frozen: Limiter, clock: Clock, store: redis.Redis, name: str
) -> None:
    assert frozen.acquire(SHORT[name]).allowed
    refused = frozen.acquire(SHORT[name])
    assert not refused.allowed
    assert 10 <= us(refused.retry_after) <= 20
    assert set(expiries(store).values()) == {clock.us + 101_000}, "no time to live rounds to nothing"
    clock.set(clock.us + us(refused.retry_after))
    assert frozen.acquire(SHORT[name]).allowed


@pytest.mark.parametrize("algorithm", ["fixed_window", "sliding_window", "sliding_log"])
def test_half_a_permit_a_second_is_one_in_two_seconds_or_an_error(
    frozen: Limiter, clock: Clock, algorithm: str
) -> None:
    with pytest.raises(ConfigurationError, match=r"'1/2s' rather than '0\.5/s'"):
        limit("0.5/s", algorithm)
    wanted = limit("1/2s", algorithm, **({"sub_windows": 1} if algorithm == "sliding_window" else {}))
    granted = []
    for half in range(16):
        clock.set(START + half * SECOND // 2)
        if frozen.acquire(wanted).allowed:
            granted.append(half / 2)
    assert granted == ([0.0, 4.0] if algorithm == "sliding_window" else [0.0, 2.0, 4.0, 6.0])


def test_half_a_token_a_second_comes_in_the_end(frozen: Limiter, clock: Clock) -> None:
    for wanted in (limit("0.5/s"), limit("0.5/s", "leaky_bucket"), limit("1/2s", refill="interval")):
        clock.set(START)
        frozen.reset(wanted)
        assert frozen.acquire(wanted).allowed
        for tenth in range(1, 20):
            clock.set(START + tenth * SECOND // 10)
            assert not frozen.acquire(wanted).allowed, "asking often does not keep it from coming"
        clock.set(START + 2 * SECOND)
        assert frozen.acquire(wanted).allowed


def test_steps_are_as_written(frozen: Limiter, clock: Clock) -> None:
    """10 every 10 s are not one every second."""
    wanted = limit("10/10s", refill="interval", burst=10)
    assert frozen.acquire(wanted, cost=10).allowed
    clock.advance(9.9)
    assert answer(frozen.acquire(wanted)) == (NO, 100_000)
    clock.advance(0.1)
    assert frozen.acquire(wanted, cost=10).allowed


@pytest.mark.parametrize("algorithm", ["fixed_window", "sliding_log"])
def test_windows_are_as_fine_as_microseconds(frozen: Limiter, clock: Clock, algorithm: str) -> None:
    wanted = limit("5/0.25s", algorithm)
    for at in (0.0, 0.25, 0.5):
        clock.set(START + us(at))
        assert frozen.acquire(wanted, cost=5).allowed
        clock.set(START + us(at) + 249_999)
        assert answer(frozen.acquire(wanted)) == (NO, 1)


@pytest.mark.parametrize("name", EVERY)
def test_a_refusal_takes_nothing_and_does_not_lengthen_the_wait(
    frozen: Limiter, clock: Clock, store: redis.Redis, name: str
) -> None:
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
def test_nothing_is_kept_for_ever(frozen: Limiter, clock: Clock, store: redis.Redis, name: str) -> None:
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


def test_the_impossible_is_an_error_and_not_a_long_wait(frozen: Limiter) -> None:
    for wanted in EVERY.values():
        with pytest.raises(ImpossibleRequest):
            frozen.acquire(wanted, cost=2)
        with pytest.raises(ImpossibleRequest):
            frozen.reserve(wanted, id="r", horizon=1e6, cost=2)


def test_a_log_that_one_decision_writes_twice_keeps_its_entries(
    frozen: Limiter, clock: Clock, store: redis.Redis
) -> None:
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
