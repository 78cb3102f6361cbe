"""Requests of several limits among others: common limits are used, and no request starves (laws 2 and 11)."""

from __future__ import annotations

from random import Random

import pytest

from celery_ratelimit import Limit, Limiter
from celery_ratelimit.limiter.limit_request import LimitRequest
from tests.conftest import START, Clock

from .frozen import us
from .waiters import Group, play
from .windows import Start, check_every_window

SECONDS = 10
LATE = [0, 2_000]  # us


def limit(rate: str, name: str, **options: object) -> LimitRequest:
    return LimitRequest(Limit(rate, name=name, **options), name)  # type: ignore[arg-type]


def used(groups: list[Group], name: str) -> float:
    """The share of a limit's rate that was used, in the second half."""
    half = START + us(SECONDS / 2)
    starts = [at for group in groups if any(each.name == name for each in group.demands) for at in group.starts]
    (rate,) = {1 / each.interval for group in groups for each in group.demands if each.name == name}
    return sum(half < at <= half + us(SECONDS / 2) for at in starts) / (rate * SECONDS / 2)


def longest(groups: list[Group]) -> int:
    return max(start - came for group in groups for came, start in zip(group.came, group.starts, strict=True))


def never_over(groups: list[Group]) -> None:
    demands = {each.name: each for group in groups for each in group.demands}
    for name, each in demands.items():
        mine = [group for group in groups if any(other.name == name for other in group.demands)]
        check_every_window([Start(at, 1) for group in mine for at in group.starts if at < START + 2_000_000], each)


@pytest.mark.parametrize("late", LATE)
def test_ten_tenants_use_the_whole_common_limit(frozen: Limiter, clock: Clock, late: int) -> None:
    stripe = limit("100/s", "stripe")
    groups = [Group((limit("15/s", f"tenant{n}"), stripe), 20) for n in range(10)]
    asked = play(frozen, clock, groups, SECONDS, late=late)
    never_over(groups)
    assert used(groups, "stripe") >= 0.97
    starts = [len(group.starts) for group in groups]
    assert min(starts) >= 0.9 * max(starts), "and share it"
    assert asked <= 2.2 * sum(starts) + 200, "each asks twice: when it comes, and at its slot"


def test_without_a_burst_two_limits_leave_less(frozen: Limiter, clock: Clock) -> None:
    """No task that is 10 ms from both fits between two tasks that are 12.5 ms apart: 88/s is the most that is left."""
    stripe = limit("100/s", "stripe")
    groups = [Group((limit("20/s", "web"), stripe), 20), Group((limit("80/s", "tasks"), stripe), 20)]
    play(frozen, clock, groups, SECONDS)
    never_over(groups)
    assert used(groups[:1], "web") >= 0.97
    assert 0.79 <= used(groups, "stripe") <= 0.89


@pytest.mark.rows(2)
@pytest.mark.parametrize("late", LATE)
@pytest.mark.parametrize("horizon", [0.1, 1.0])
def test_requests_of_both_limits_are_served_among_many_of_one(
    frozen: Limiter, clock: Clock, horizon: float, late: int
) -> None:
    a, b = limit("100/s", "a"), limit("100/s", "b")
    groups = [Group((a,), 50), Group((b,), 50), Group((a, b), 3)]
    play(frozen, clock, groups, SECONDS, horizon=horizon, late=late)
    never_over(groups)
    assert used([groups[0], groups[2]], "a") >= 0.97
    assert used([groups[1], groups[2]], "b") >= 0.97
    assert len(groups[2].starts) >= 3 * SECONDS, "each of the three once a second"
    assert longest(groups) <= us(1.0)


@pytest.mark.rows(6)
@pytest.mark.parametrize("late", LATE)
@pytest.mark.parametrize("seed", range(12))
def test_every_waiting_request_is_served_within_a_bound(frozen: Limiter, clock: Clock, seed: int, late: int) -> None:
    """No request waits longer than all waiting requests would take one after the other."""
    random = Random(seed)
    rates = ["10/s", "20/s", "33/s", "50/s", "100/s", "7/s"]
    options: list[dict[str, object]] = [{"burst": burst} for burst in (1, 1, 1, 2, 5)] + [{"algorithm": "leaky_bucket"}]
    limits = [limit(random.choice(rates), name, **random.choice(options)) for name in "wxyz"]
    groups = [
        Group(tuple(random.sample(limits, random.randint(1, 3))), random.choice([1, 3, 10]))
        for _ in range(random.randint(2, 6))
    ]
    play(frozen, clock, groups, SECONDS, late=late, seed=seed)
    never_over(groups)
    # Each takes the time of its slowest limit at most, and leaves less than a permit unused in the others.
    bound = sum(group.callers * us(sum(each.interval for each in group.demands)) for group in groups) + 10 * late
    assert longest(groups) <= bound
    unserved = [group for group in groups if bound < us(SECONDS) and len(group.starts) < group.callers]
    assert not unserved


@pytest.mark.rows(4)
@pytest.mark.parametrize("late", LATE)
@pytest.mark.parametrize("seed", range(6))
def test_tightest_limit_is_used_in_every_mixture(frozen: Limiter, clock: Clock, seed: int, late: int) -> None:
    """The first: two groups, whose own limits are together just the common one."""
    random = Random(seed)
    common = limit("100/s", "common", burst=2)
    rates = [random.choice([10, 20, 30, 50, 80]) for _ in range(random.randint(3, 6))] if seed else [20, 80]
    while seed and sum(rates) < 150:
        rates.append(random.choice([30, 50]))
    groups = [Group((limit(f"{rate}/s", f"own{n}"), common), rate) for n, rate in enumerate(rates)]
    if seed and random.random() < 0.5:
        groups.append(Group((common,), 5))
    play(frozen, clock, groups, SECONDS, late=late, seed=seed)
    never_over(groups)
    assert used(groups, "common") >= 0.97


@pytest.mark.parametrize("algorithm", ["fixed_window", "sliding_window", "sliding_log"])
def test_newcomer_takes_no_permits_that_waiting_requests_need_within_a_period(frozen: Limiter, algorithm: str) -> None:
    common = Limit("4/s", algorithm=algorithm, name="common")
    pair = LimitRequest(common, "common", cost=2)
    near, far = [limit("2/3s", name) for name in ("first", "second")], limit("1/10s", "far")
    for wanted in ([LimitRequest(common, "common", cost=4)], *[[each] for each in (*near, far)]):
        assert frozen._asker.ask(wanted).allowed
    waits = [frozen._asker.ask([pair, each], id=each.name, claim=1e6).retry_after for each in (far, *near)]
    assert waits == [10.0, 1.5, 1.5], "all four permits of that second are theirs"
    assert [frozen._asker.ask([pair], id=id, claim=1e6).retry_after for id in "abc"] == [2.5, 2.5, 3.5]
