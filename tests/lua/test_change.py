"""What a change of a limit keeps: the cases of docs/adr/0012 one by one. Random traces: test_change_laws.py."""

from __future__ import annotations

from itertools import permutations

import pytest
import redis

from celery_ratelimit import Decision, Limit, Limiter
from celery_ratelimit.limiter.limit_request import LimitRequest
from tests.asking import settle_demands
from tests.conftest import START, Clock

from .frozen import us
from .mixed_world import KINDS


def limit(rate: str, algorithm: str = "token_bucket", name: str = "api", **options: object) -> Limit:
    return Limit(rate, algorithm=algorithm, name=name, **options)  # type: ignore[arg-type]


#: Ten at once, and ten more in a second, of every algorithm.
TEN = {
    "token_bucket": limit("10/s", burst=10),
    "leaky_bucket": limit("10/s", "leaky_bucket"),
    "fixed_window": limit("10/s", "fixed_window"),
    "sliding_window": limit("10/s", "sliding_window"),
    "sliding_log": limit("10/s", "sliding_log"),
    "stepped_bucket": limit("10/s", burst=10, refill="interval"),
    "warm_up": limit("10/s", burst=10, warmup=2.0),
}
#: The same size, and a thousandth of the rate.
SLOW = {
    "token_bucket": limit("10/h", burst=10),
    "leaky_bucket": limit("10/h", "leaky_bucket"),
    "fixed_window": limit("10/h", "fixed_window"),
    "sliding_window": limit("10/h", "sliding_window"),
    "sliding_log": limit("10/h", "sliding_log"),
    "stepped_bucket": limit("10/h", burst=10, refill="interval"),
    "warm_up": limit("10/h", burst=10, warmup=2.0),
}


def granted(limiter: Limiter, wanted: Limit) -> int:
    count = 0
    while limiter.acquire(wanted).allowed:
        count += 1
    return count


def wait(limiter: Limiter, wanted: Limit) -> float:
    return limiter.peek(wanted).retry_after


# -- What comes back, comes back at the new rate -----------------------------------------------------------------------


@pytest.mark.parametrize("align", ["clock", "first"])
@pytest.mark.parametrize(
    ("before", "after", "opens"), [("1000/h", "100/h", 1800), ("100000/d", "10/s", 1), ("1000/h", "100/m", 60)]
)
def test_a_lowered_window_that_is_used_up_opens_with_the_next(
    frozen: Limiter, clock: Clock, align: str, before: str, after: str, opens: int
) -> None:
    wanted = limit(before, "fixed_window", align=align)
    frozen.acquire(wanted)
    clock.advance(1800)
    assert frozen.acquire(wanted, cost=wanted.size - 1).allowed
    frozen.set_rate("api", limit(after, "fixed_window", align=align))
    for _ in range(2):
        assert wait(frozen, wanted) == opens
        assert not frozen.acquire(wanted).allowed
    clock.advance(opens)
    assert granted(frozen, wanted) == int(after.split("/")[0])


def test_a_lowered_window_that_is_used_up_has_nothing_for_what_is_settled(frozen: Limiter) -> None:
    """A bucket that never lent the 600 would be used up as well."""
    wanted = limit("1000/h", "fixed_window")
    first = frozen.acquire(wanted, cost=600)
    second = frozen.acquire(wanted, cost=400)
    frozen.set_rate("api", limit("100/h", "fixed_window"))
    assert frozen.settle(first, 0)
    assert granted(frozen, wanted) == 0
    assert frozen.settle(second, 90)
    assert granted(frozen, wanted) == 10


def test_what_was_overdrawn_before_a_change_is_still_taken_from_the_windows_after_it(
    frozen: Limiter, clock: Clock
) -> None:
    wanted = limit("10/s", "fixed_window")
    frozen.settle(frozen.acquire(wanted), 30)
    frozen.set_rate("api", limit("5/s", "fixed_window"))
    assert wait(frozen, wanted) == 5.0, "ten are in this window, twenty are owed"


def test_a_raised_warm_up_has_to_pay_so_many_permits_and_not_the_time_that_they_took(
    frozen: Limiter, clock: Clock
) -> None:
    slow, fast = limit("1/h", warmup=5.0), limit("100/s", warmup=5.0)
    frozen.acquire(slow)
    frozen.set_rate("api", fast)
    assert wait(frozen, slow) <= 0.03
    clock.advance(0.03)
    assert frozen.acquire(slow).allowed


def test_a_cold_limit_that_is_raised_is_cold(frozen: Limiter, clock: Clock) -> None:
    """Nine tenths of the cold are left: a permit takes more than twice as long as when it is warm."""
    slow = limit("1/s", warmup=10.0)
    frozen.acquire(slow)
    frozen.set_rate("api", limit("100/s", warmup=10.0))
    clock.advance(wait(frozen, slow))
    assert frozen.acquire(slow).allowed
    assert 0.025 <= wait(frozen, slow) <= 0.03


def test_an_interval_bucket_that_is_empty_stays_empty_until_the_new_interval_is_over(
    frozen: Limiter, clock: Clock
) -> None:
    slow = limit("10/h", burst=10, refill="interval")
    frozen.acquire(slow, cost=10)
    clock.advance(1800)
    frozen.set_rate("api", limit("10/s", burst=1000, refill="interval"))
    assert granted(frozen, slow) == 0
    assert wait(frozen, slow) == 1.0
    clock.advance(1)
    assert granted(frozen, slow) == 10


@pytest.mark.parametrize("method", ["token_bucket", "stepped_bucket"])
def test_nothing_comes_back_by_a_lowered_rate_because_a_permit_lies_further_ahead_than_its_bucket_asked(
    frozen: Limiter, clock: Clock, method: str
) -> None:
    """Fifty are in use, and one lies a minute ahead, for the sake of another limit."""
    refill = "interval" if method == "stepped_bucket" else "continuous"
    wanted, slow = limit("10/s", burst=50, refill=refill), limit("1/m", name="slow")
    frozen.acquire([wanted, slow])
    frozen.acquire(wanted, cost=49)
    assert frozen.reserve([wanted, slow], id="r", horizon=60).retry_after == 60
    frozen.set_rate("api", limit("1/m", burst=50, refill=refill))
    assert granted(frozen, wanted) == 0
    clock.advance(59.999999)
    assert granted(frozen, wanted) == 0
    clock.advance(2)
    assert granted(frozen, wanted) <= 1


# -- Another algorithm begins as used up -------------------------------------------------------------------------------

#: Token and leaky bucket keep the same state: a change between them is one of the rate.
CHANGES = [
    (before, after) for before, after in permutations(KINDS, 2) if {before, after} != {"token_bucket", "leaky_bucket"}
]


@pytest.mark.parametrize(("before", "after"), CHANGES)
@pytest.mark.parametrize("change", ["set_rate", "code"])
def test_another_algorithm_grants_nothing_at_first_and_all_after_a_period(
    frozen: Limiter, clock: Clock, before: str, after: str, change: str
) -> None:
    """One of ten was used. The new one counts ten as taken then, and has them all again after its period."""
    wanted = TEN[before]
    assert frozen.acquire(wanted).allowed
    if change == "set_rate":
        frozen.set_rate("api", TEN[after])
    else:
        wanted = TEN[after]
    assert granted(frozen, wanted) == 0
    refused = frozen.peek(wanted)
    assert not refused.allowed
    assert 0 < refused.retry_after <= 2, "two seconds under a warm-up"
    clock.advance(refused.retry_after)
    assert frozen.acquire(wanted).allowed
    clock.advance(frozen.peek(wanted).reset_after)
    assert frozen.peek(wanted).remaining == TEN[after].size


@pytest.mark.parametrize(("before", "after"), CHANGES)
def test_another_algorithm_begins_behind_the_last_permit_that_was_granted_ahead(
    frozen: Limiter, clock: Clock, before: str, after: str
) -> None:
    wanted, slow = TEN[before], limit("1/m", name="slow")
    frozen.acquire([wanted, slow])
    assert frozen.reserve([wanted, slow], id="r", horizon=60).retry_after == 60
    frozen.set_rate("api", TEN[after])
    clock.advance(59.999_999)
    assert granted(frozen, wanted) == 0
    clock.advance(0.000_001)
    assert granted(frozen, wanted) == 0
    clock.advance(3)
    assert frozen.acquire(wanted).allowed


@pytest.mark.parametrize(("before", "after"), CHANGES)
def test_two_algorithms_in_turn_grant_permits_in_every_period_and_never_too_many(
    frozen: Limiter, clock: Clock, before: str, after: str
) -> None:
    """A rolling deploy that changes the algorithm: processes of either code wait for the same bucket."""
    allowed = 0
    for step in range(2000):
        wanted = (TEN[before], TEN[after])[step % 2]
        allowed += frozen._asker.ask([LimitRequest(wanted, "api")], id=f"{step % 2}", claim=1e6).allowed
        clock.advance(0.01)
    assert 8 <= allowed <= 10 * 20 + 10


def test_a_bucket_of_another_algorithm_that_was_full_again_leaves_nothing(frozen: Limiter, clock: Clock) -> None:
    """The store has forgotten it: the new one is full."""
    frozen.acquire(TEN["token_bucket"])
    clock.advance(1)
    frozen.set_rate("api", TEN["sliding_log"])
    assert granted(frozen, TEN["token_bucket"]) == 10


# -- Settled or cancelled after a change -------------------------------------------------------------------------------


@pytest.mark.parametrize("after", KINDS)
@pytest.mark.parametrize("before", KINDS)
def test_what_had_come_back_before_a_change_does_not_come_back_after_it(
    frozen: Limiter, clock: Clock, before: str, after: str
) -> None:
    """A takes all, five seconds later C does, the rate is lowered, and A turns out to have cost nothing."""
    a = frozen.acquire(TEN[before], cost=TEN[before].size)
    frozen.reserve(TEN[before], id="r", horizon=60)
    clock.advance(10)
    assert frozen.acquire(TEN[before], cost=TEN[before].size).allowed
    frozen.set_rate("api", SLOW[after])
    left = granted(frozen, TEN[before])
    assert left <= max(0, SLOW[after].size - TEN[before].size)
    assert frozen.settle(a, 0)
    frozen.cancel(TEN[before], id="r")
    assert granted(frozen, TEN[before]) == 0


@pytest.mark.parametrize("change", ["set_rate", "reset", "code"])
@pytest.mark.parametrize("method", [kind for kind in KINDS if kind != "warm_up"])
def test_a_bucket_gives_back_only_what_it_has_lent(frozen: Limiter, clock: Clock, method: str, change: str) -> None:
    """It was full before the change, or was emptied by hand: what A took is not in it."""
    wanted = TEN[method]
    a = frozen.acquire(wanted, cost=wanted.size)
    clock.advance(5)
    if change == "set_rate":
        frozen.set_rate("api", SLOW[method])
    elif change == "code":
        wanted = SLOW[method]
    else:
        frozen.reset(wanted)
    clock.advance(0.5)
    assert granted(frozen, wanted) == wanted.size
    assert settle_demands(
        frozen, [LimitRequest(wanted, "api", "", wanted.size)], [0], id=a.id, granted_at=a._granted_at
    )
    assert granted(frozen, wanted) == 0


@pytest.mark.parametrize("rate", ["10/h", "3/s", "11/s", "100/s"])
def test_half_of_what_was_taken_had_come_back_when_the_rate_changed(frozen: Limiter, clock: Clock, rate: str) -> None:
    wanted = TEN["token_bucket"]
    a = frozen.acquire(wanted, cost=10)
    clock.advance(0.5)
    frozen.acquire(wanted, cost=5)
    frozen.set_rate("api", limit(rate, burst=10))
    assert wait(frozen, wanted) > 0
    assert frozen.settle(a, 0)
    assert granted(frozen, wanted) in (
        (5,) if rate in ("10/h", "100/s") else (4, 5)
    )  # a fraction of a microsecond is missing


@pytest.mark.parametrize("after", KINDS)
@pytest.mark.parametrize("verb", ["settle", "cancel"])
@pytest.mark.parametrize("before", KINDS)
def test_a_correction_may_be_the_first_to_come_after_a_change_of_algorithm(
    frozen: Limiter, clock: Clock, store: redis.Redis, before: str, after: str, verb: str
) -> None:
    wanted = TEN[before]
    taken = frozen.reserve(wanted, id="r", horizon=0.0)
    frozen.set_rate("api", TEN[after])
    assert (
        frozen.settle(taken, 1 if before == "leaky_bucket" else 3)
        if verb == "settle"
        else frozen.cancel(wanted, id="r")
    )
    assert frozen.peek(wanted).remaining >= 0
    clock.advance(30)
    assert frozen.acquire(wanted).allowed


def test_a_correction_that_fails_is_not_remembered(frozen: Limiter, store: redis.Redis) -> None:
    wanted = limit("10/s", "sliding_log")
    taken = frozen.acquire(wanted, cost=10)
    key = next(iter(store.scan_iter("ratelimit:*:state")))
    kept = store.dump(key)
    store.delete(key)
    store.sadd(key, "of another type")
    with pytest.raises(Exception, match="WRONGTYPE"):
        frozen.settle(taken, 0)
    store.restore(key, 0, kept, replace=True)
    assert frozen.settle(taken, 0)
    assert granted(frozen, wanted) == 10


# -- The sliding log ---------------------------------------------------------------------------------------------------


def test_calls_of_one_microsecond_are_given_back_whole(frozen: Limiter) -> None:
    wanted = limit("100000/h", "sliding_log")
    big = frozen.acquire(wanted, cost=99_000)
    frozen.acquire(wanted, cost=10)
    assert frozen.settle(big, 0)
    assert frozen.peek(wanted).remaining == 99_990


def test_a_call_is_found_in_a_long_log_by_halves(frozen: Limiter, clock: Clock, store: redis.Redis) -> None:
    wanted = limit("20000/h", "sliding_log")
    calls = []
    for number in range(1000):
        clock.set(START + number)
        calls.append(frozen.acquire(wanted, cost=2))
    clock.advance(3_599.999_100)  # the first hundred have left
    frozen.acquire(wanted)
    for number in (0, 99, 100, 101, 500, 998, 999):
        before = frozen.peek(wanted).remaining
        store.config_resetstat()
        assert frozen.settle(calls[number], 0)
        stats = store.info("commandstats")
        assert 1 <= stats.get("cmdstat_lindex", {"calls": 0})["calls"] <= 11, "of a thousand calls"
        assert frozen.peek(wanted).remaining - before == (2 if number >= 100 else 0)


# -- Numbers at the edges ----------------------------------------------------------------------------------------------


HUGE = [
    limit("1/d"),
    limit("1/d", "leaky_bucket"),
    limit("1/d", "fixed_window"),
    limit("1/d", "fixed_window", align="first"),
    limit("1/d", "sliding_window"),
    limit("1/d", "sliding_log"),
    limit("1/d", refill="interval"),
    limit("1/d", warmup=1e6),
    limit("1/999999999s"),
]


@pytest.mark.parametrize("wanted", HUGE, ids=repr)
def test_a_bucket_that_is_overdrawn_beyond_all_numbers_goes_on(frozen: Limiter, clock: Clock, wanted: Limit) -> None:
    assert frozen.settle(frozen.acquire(wanted), 10**9 - 1)
    for _ in range(3):
        for refused in (frozen.peek(wanted), frozen.acquire(wanted)):
            assert not refused.allowed
            assert 0 < refused.retry_after <= 2**52 / 1e6
            assert refused.reset_after >= 0
        clock.advance(1)
    frozen.reset(wanted)
    assert frozen.acquire(wanted).allowed


@pytest.mark.parametrize("after", KINDS)
@pytest.mark.parametrize("before", KINDS)
def test_a_deep_bucket_under_a_slow_rate_goes_on(frozen: Limiter, clock: Clock, before: str, after: str) -> None:
    many = {
        "token_bucket": limit("1000000/s", burst=10**9 - 1),
        "leaky_bucket": limit("1000000/s", "leaky_bucket"),
        "stepped_bucket": limit("1000000/s", burst=10**9 - 1, refill="interval"),
        "warm_up": limit("1000000/s", burst=10**9 - 1, warmup=1.0),
    }
    wanted = many.get(before) or limit("1000000/d", before)
    frozen.acquire(wanted, cost=wanted.size)
    frozen.settle(frozen.reserve(wanted, id="r", horizon=1e9), 10**9 - 1)
    frozen._asker.ask([LimitRequest(wanted, "api", "", 1)], id="waiting", claim=1e9)
    slow = {
        "token_bucket": limit("1/999999999s"),
        "leaky_bucket": limit("1/999999999s", "leaky_bucket"),
        "stepped_bucket": limit("1/d", refill="interval"),
        "warm_up": limit("1/d", warmup=1.0),
    }
    frozen.set_rate("api", slow.get(after) or limit("1/d", after))
    for _ in range(3):
        for each in (
            frozen.peek(wanted),
            frozen.acquire(wanted),
            frozen._asker.ask([LimitRequest(wanted, "api")], id="w", claim=1e9),
        ):
            assert isinstance(each, Decision)
            assert 0 <= each.retry_after <= 2**52 / 1e6
            assert 0 <= each.reset_after <= 2**52 / 1e6
            assert each.remaining >= 0
        clock.advance(1)
    frozen.reset(wanted)
    assert frozen.acquire(wanted).allowed


def test_a_state_that_nobody_can_read_is_none(frozen: Limiter, store: redis.Redis) -> None:
    for method, wanted in TEN.items():
        if method == "sliding_log":
            continue
        frozen.acquire(wanted)
        key = next(iter(store.scan_iter("ratelimit:*:state")))
        letter = store.get(key)[0]
        store.set(
            key,
            f"{letter if letter.isalpha() else ''}-9223372036854775808 0 -9223372036854775808 0 0 86400000000",
            ex=9,
        )
        assert frozen.acquire(wanted).allowed
        assert frozen.acquire(wanted).retry_after >= 0
        frozen.reset(wanted)


# -- Keys --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", KINDS)
def test_by_the_servers_clock_no_key_expires_before_its_bucket_is_full(
    limiter: Limiter, store: redis.Redis, method: str
) -> None:
    wanted = TEN[method]
    for _ in range(200):
        decision = limiter.acquire(wanted)
        seconds, micros = store.time()
        left = store.pttl("ratelimit:v1:{api}::state")
        expires = (
            seconds * 1000 + micros // 1000 + left
        ) * 1000  # at the earliest: the key was looked at later than the clock
        if decision.allowed:
            assert expires >= decision._granted_at + us(decision.reset_after)


@pytest.mark.parametrize("before", KINDS)
@pytest.mark.parametrize("after", KINDS)
def test_changed_code_counts_from_its_first_decision_and_not_from_a_look(
    frozen: Limiter, clock: Clock, store: redis.Redis, before: str, after: str
) -> None:
    while frozen.acquire(SLOW[before], max_wait=0).allowed:
        pass
    bucket = store.dump("ratelimit:v1:{api}::state")
    told = frozen.peek(TEN[after])
    assert store.dump("ratelimit:v1:{api}::state") == bucket
    decided = frozen.acquire(TEN[after])
    assert (decided.allowed, decided.retry_after) == (told.allowed, told.retry_after)
    told = frozen.peek(TEN[after])
    for _ in range(3):
        clock.advance(told.reset_after)
        told = frozen.peek(TEN[after])
    assert (told.allowed, told.reset_after) == (True, 0)


def test_who_had_a_slot_has_it_later_though_nobody_asked_until_it_would_have_passed(
    frozen: Limiter, clock: Clock
) -> None:
    fast, slow = limit("10/s"), limit("1/s")
    ask = frozen._asker.ask
    assert ask((LimitRequest(fast, "api"),)).allowed
    assert not ask((LimitRequest(fast, "api"),), id="a", claim=10).allowed  # its turn is in a tenth of a second
    clock.advance(0.001)
    frozen.set_rate("api", slow, force=True)
    clock.advance(1.0)  # and now, at the lower rate
    assert not ask((LimitRequest(fast, "api"),), id="b", claim=10).allowed
    assert ask((LimitRequest(fast, "api"),), id="a", claim=10).allowed
