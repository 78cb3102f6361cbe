"""What a change of a limit keeps (docs/adr/0012). Random traces: test_change_laws.py, test_stored_model.py."""

from __future__ import annotations

from itertools import permutations

import pytest
import redis

from celery_ratelimit import Decision, Limit, Limiter
from celery_ratelimit.limiter.limit_request import LimitRequest
from tests.asking import settle_demands
from tests.conftest import START, Clock

from .mixed_world import KINDS


def limit(rate: str, algorithm: str = "token_bucket", name: str = "api", **options: object) -> Limit:
    return Limit(rate, algorithm=algorithm, name=name, **options)  # type: ignore[arg-type]


def of_every_algorithm(rate: str) -> dict[str, Limit]:
    return {
        **{each: limit(rate, each) for each in ("leaky_bucket", "fixed_window", "sliding_window", "sliding_log")},
        "token_bucket": limit(rate, burst=10),
        "stepped_bucket": limit(rate, burst=10, refill="interval"),
        "warm_up": limit(rate, burst=10, warmup=2.0),
    }


#: Ten at once, and ten more in a second; the same size, and a thousandth of the rate.
TEN, SLOW = of_every_algorithm("10/s"), of_every_algorithm("10/h")


def granted(limiter: Limiter, wanted: Limit) -> int:
    count = 0
    while limiter.acquire(wanted).allowed:
        count += 1
    return count


#: Token and leaky bucket keep the same state: a change between them is one of the rate.
CHANGES = [
    (before, after) for before, after in permutations(KINDS, 2) if {before, after} != {"token_bucket", "leaky_bucket"}
]


@pytest.mark.parametrize(("before", "after"), CHANGES)
@pytest.mark.parametrize("change", ["set_rate", "code"])
def test_new_algorithm_starts_empty_and_is_full_after_a_period(
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


@pytest.mark.rows(10)
@pytest.mark.parametrize(("before", "after"), CHANGES)
def test_alternating_algorithms_of_a_rolling_deploy_keep_the_rate(
    frozen: Limiter, clock: Clock, before: str, after: str
) -> None:
    """A rolling deploy that changes the algorithm: processes of either code wait for the same bucket."""
    allowed = 0
    for step in range(2000):
        wanted = (TEN[before], TEN[after])[step % 2]
        allowed += frozen._asker.ask([LimitRequest(wanted, "api")], id=f"{step % 2}", claim=1e6).allowed
        clock.advance(0.01)
    assert 8 <= allowed <= 10 * 20 + 10


@pytest.mark.parametrize("change", ["set_rate", "reset", "code"])
@pytest.mark.parametrize("method", [kind for kind in KINDS if kind != "warm_up"])
def test_settle_returns_no_permits_that_the_bucket_did_not_lend(
    frozen: Limiter, clock: Clock, method: str, change: str
) -> None:
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


def test_failed_settle_can_be_repeated(frozen: Limiter, store: redis.Redis) -> None:
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


@pytest.mark.parametrize("after", KINDS)
@pytest.mark.parametrize("before", KINDS)
def test_settle_after_a_change_returns_no_permit_that_had_returned_before(
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


def test_settle_returns_every_permit_of_a_large_log_entry(frozen: Limiter) -> None:
    wanted = limit("100000/h", "sliding_log")
    big = frozen.acquire(wanted, cost=99_000)
    frozen.acquire(wanted, cost=10)
    assert frozen.settle(big, 0)
    assert frozen.peek(wanted).remaining == 99_990


def test_settle_finds_a_log_entry_by_binary_search(frozen: Limiter, clock: Clock, store: redis.Redis) -> None:
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
def test_hugely_overdrawn_bucket_still_answers(frozen: Limiter, clock: Clock, wanted: Limit) -> None:
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
def test_deep_bucket_under_a_slow_rate_still_answers(frozen: Limiter, clock: Clock, before: str, after: str) -> None:
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


def test_unreadable_state_counts_as_no_state(frozen: Limiter, store: redis.Redis) -> None:
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


@pytest.mark.parametrize("before", KINDS)
@pytest.mark.parametrize("after", KINDS)
def test_changed_code_takes_effect_at_a_decision_and_not_at_a_peek(
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


def test_slot_before_a_lower_rate_keeps_its_place_in_line(frozen: Limiter, clock: Clock) -> None:
    fast, slow = limit("10/s"), limit("1/s")
    ask = frozen._asker.ask
    assert ask((LimitRequest(fast, "api"),)).allowed
    assert not ask((LimitRequest(fast, "api"),), id="a", claim=10).allowed  # its turn is in a tenth of a second
    clock.advance(0.001)
    frozen.set_rate("api", slow, force=True)
    clock.advance(1.0)  # and now, at the lower rate
    assert not ask((LimitRequest(fast, "api"),), id="b", claim=10).allowed
    assert ask((LimitRequest(fast, "api"),), id="a", claim=10).allowed
