"""The options of each algorithm: what they are on the wire, and what is wrong with those that cannot be."""

from __future__ import annotations

import pickle
import re
from dataclasses import fields, replace
from typing import Any

import pytest

from celery_ratelimit import Adaptive, Concurrency, ConfigurationError, ImpossibleRequest, Limit, Limiter
from celery_ratelimit.app.settings import limits_of
from celery_ratelimit.limiter.argument_checks import actual_costs
from celery_ratelimit.limiter.limit_request import LimitRequest
from celery_ratelimit.limits.limit import ALGORITHMS
from celery_ratelimit.limits.specs import named


@pytest.mark.parametrize(
    ("limit", "wire"),
    [
        (Limit("100/s"), ("token_bucket", 1, 10_000, 1, 1, 0)),
        (Limit("3/s", burst=5, debt=7), ("token_bucket", 3, 1_000_000, 5, 1, 7)),
        (Limit("10/s", refill="interval", burst=20), ("stepped_bucket", 10, 1_000_000, 20, 1, 0)),
        (Limit("10/s", warmup=2.5), ("warm_up", 1, 100_000, 1, 1, 2_500_000)),
        (Limit("10/s", algorithm="leaky_bucket"), ("leaky_bucket", 1, 100_000, 1, 1, -1)),
        (Limit("10/s", algorithm="leaky_bucket", capacity=0), ("leaky_bucket", 1, 100_000, 1, 1, 0)),
        (Limit("1000/h", algorithm="fixed_window"), ("fixed_window", 1000, 3_600_000_000, 1000, 1, 0)),
        (Limit("2/3s", algorithm="fixed_window", align="first"), ("fixed_window", 2, 3_000_000, 2, 1, 1)),
        (Limit("10/s", algorithm="sliding_window"), ("sliding_window", 10, 1_000_000, 10, 1, 10)),
        (Limit("10/s", algorithm="sliding_window", sub_windows=60), ("sliding_window", 10, 1_000_000, 10, 1, 60)),
        (Limit("10/s", algorithm="sliding_log"), ("sliding_log", 10, 1_000_000, 10, 1, 0)),
        (Concurrency(5), ("concurrency", 5, 60_000_000, 5, 1, 0)),
        (Concurrency(5, lease=0.5), ("concurrency", 5, 500_000, 5, 1, 0)),
    ],
    ids=str,
)
def test_what_the_scripts_are_told(limit: Limit | Concurrency, wire: tuple[Any, ...]) -> None:
    assert limit.wire(1) == wire
    assert pickle.loads(pickle.dumps(limit)).wire(1) == wire
    assert replace(limit, name="other").wire(1) == wire


@pytest.mark.parametrize(
    ("limit", "wire"),
    [
        (Limit("100/s", headroom=0.03), ("token_bucket", 97, 1_000_000, 1, 1, 0)),
        (Limit("100/s", headroom=0.03, algorithm="fixed_window"), ("fixed_window", 97, 1_000_000, 97, 1, 0)),
        (Limit("97/s", headroom=0.03, algorithm="sliding_log"), ("sliding_log", 97, 1_030_928, 97, 1, 0)),
        (Limit("1/s", headroom=0.5, algorithm="fixed_window", align="first"), ("fixed_window", 1, 2_000_000, 1, 1, 1)),
    ],
)
def test_headroom_keeps_a_share_of_the_rate_back(limit: Limit, wire: tuple[Any, ...]) -> None:
    assert limit.wire(1) == wire


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"algorithm": "gcra"}, r"algorithm='gcra' is not one of token_bucket, leaky_bucket"),
        ({"algorithm": "concurrency"}, r"algorithm='concurrency' is not one of .*: for places, take Concurrency"),
        ({"algorithm": "fixed_window", "align": "utc"}, r"align='utc' is not one of clock, first"),
        ({"refill": "greedy"}, r"refill='greedy' is not one of continuous, interval"),
        ({"debt": -1}, r"debt=-1 must be a whole number of at least 0"),
        ({"debt": 1.5}, r"debt=1.5 must be a whole number"),
        ({"algorithm": "leaky_bucket", "capacity": -1}, r"capacity=-1 must be a whole number of at least 0"),
        ({"algorithm": "sliding_window", "sub_windows": 1001}, r"sub_windows=1001 is more than 1000, .*'sliding_log'"),
        ({"algorithm": "sliding_window", "sub_windows": 0}, r"sub_windows=0 must be a whole number of at least 1"),
        ({"warmup": -1}, r"warmup=-1 must be a number of seconds"),
        ({"warmup": float("inf")}, r"warmup=inf must be a number of seconds"),
        ({"warmup": 1, "debt": 1}, r"exclude one another"),
        ({"resume_over": -1}, r"resume_over=-1 must be a number of seconds"),
        ({"refill": "interval", "debt": 1}, r"exclude one another"),
        ({"headroom": 1}, r"headroom=1 must be a share from 0 to below 1"),
        ({"headroom": -0.1}, r"headroom=-0.1 must be a share"),
        ({"headroom": "3%"}, r"headroom='3%' must be a share"),
    ],
)
def test_an_option_that_cannot_be_is_an_error_that_names_it(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says) as caught:
        Limit("100/s", name="api", **options)
    assert "'api'" in str(caught.value)


#: Options of one algorithm: another value than the default, the algorithm.
OWN_OPTIONS: dict[str, tuple[Any, str]] = {
    "burst": (5, "token_bucket"),
    "refill": ("interval", "token_bucket"),
    "debt": (1, "token_bucket"),
    "warmup": (1.5, "token_bucket"),
    "resume_over": (10.0, "token_bucket"),
    "priority_reserve": ({0: 0.5}, "token_bucket"),
    "adaptive": (Adaptive(), "token_bucket"),
    "capacity": (5, "leaky_bucket"),
    "align": ("first", "fixed_window"),
    "sub_windows": (5, "sliding_window"),
}
#: Options of every algorithm.
SHARED = {
    *("rate", "algorithm", "name", "key", "missing_key", "cost", "headroom", "per_worker", "fair", "weights", "shadow"),
    *("max_parked", "breaker", "rates", "rates_ttl"),
}


def test_each_option_is_of_one_algorithm_or_of_all() -> None:
    assert {each.name for each in fields(Limit)} == OWN_OPTIONS.keys() | SHARED


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("option", OWN_OPTIONS)
def test_an_option_of_another_algorithm_is_an_error_that_names_both(option: str, algorithm: str) -> None:
    value, takes = OWN_OPTIONS[option]
    burst = {"burst": 10} if option == "priority_reserve" and algorithm == takes else {}
    if algorithm == takes:
        assert getattr(Limit("10/s", algorithm=algorithm, **burst, **{option: value}), option)
        return
    own = ", ".join(each for each, (_, owner) in OWN_OPTIONS.items() if owner == algorithm)
    with pytest.raises(ConfigurationError) as caught:
        Limit("10/s", name="api", algorithm=algorithm, **{option: value})
    said = f"Limit('10/s', name='api'): {option}={value!r} is for algorithm={takes!r}, not {algorithm!r}"
    assert str(caught.value) == f"{said}, {f'whose own options are {own}' if own else 'which has no option of its own'}"


@pytest.mark.parametrize(
    ("written", "says"),
    [
        ({"limit": 3, "burst": 5}, "burst=5 is for a rate, and limit= makes a Concurrency"),
        ({"limit": 3, "algorithm": "sliding_log"}, "algorithm='sliding_log' is for a rate, and limit= makes"),
        ({"limit": 3, "rate": "1/s"}, "rate='1/s' is for a rate, and limit= makes a Concurrency"),
        ({"rate": "1/s", "lease": 5}, "lease=5 is for a Concurrency, and without limit= this is a rate"),
    ],
)
def test_a_quota_with_an_option_of_the_other_kind_is_an_error_that_names_it(written: Any, says: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"quotas\['api'\]: {re.escape(says)}"):
        Limiter.from_url("redis://127.0.0.1:1/0", quotas={"api": written})


@pytest.mark.parametrize("rate", ["0.5/s", "1.5/m"])
def test_a_window_takes_whole_numbers(rate: str) -> None:
    with pytest.raises(ConfigurationError, match=f"'{rate}' is not a whole number in a whole window.*1/2s"):
        Limit(rate, algorithm="sliding_log")


def test_a_window_that_headroom_leaves_nothing_of() -> None:
    with pytest.raises(ConfigurationError, match=r"'1/s' with headroom=0.1 would never let anything through"):
        Limit("1/s", algorithm="fixed_window", headroom=0.1)


def test_a_sliding_window_that_cannot_be_reckoned_exactly() -> None:
    with pytest.raises(ConfigurationError, match="raise sub_windows"):
        Limit("999999999/d", algorithm="sliding_window", sub_windows=1)
    Limit("99999999/d", algorithm="sliding_window", sub_windows=1000)


@pytest.mark.parametrize(
    ("limit", "options", "says"),
    [
        (0, {}, r"Concurrency\(0\): the limit must be a whole number"),
        (99999999999, {}, r"Concurrency\(99999999999\): the limit must be a whole number, 1 to 999999999"),
        (1.5, {}, r"Concurrency\(1.5\): the limit must be a whole number"),
        (True, {}, r"the limit must be a whole number"),
        (5, {"lease": 0}, r"lease=0 must be a number of seconds"),
        (5, {"lease": float("nan")}, r"lease=nan must be a number of seconds"),
        (5, {"name": ""}, r"name='' must be a text"),
        (5, {"key": "{0}"}, r"must name the task's arguments"),
    ],
)
def test_a_concurrency_that_cannot_be(limit: Any, options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        Concurrency(limit, **options)


def test_what_can_never_be_granted_is_an_error_when_the_limit_is_made() -> None:
    for limit in (
        lambda: Limit("5/s", algorithm="sliding_log", cost=6),
        lambda: Limit("5/s", algorithm="leaky_bucket", cost=2),
        lambda: Limit("5/s", burst=3, debt=2, cost=6),
    ):
        with pytest.raises(ConfigurationError, match="can never grant"):
            limit()
    assert Limit("5/s", burst=3, debt=2, cost=5).most == 5
    assert Limit("5/s", algorithm="sliding_log", cost=5).most == 5


def test_settings_may_describe_any_of_them() -> None:
    spec = [{"rate": "10/s", "algorithm": "sliding_log"}, {"limit": 5, "lease": 10}, "1/s", Concurrency(2)]
    limits = limits_of(spec, {}, "here")
    assert limits == (Limit("10/s", algorithm="sliding_log"), Concurrency(5, lease=10), Limit("1/s"), Concurrency(2))
    assert [limit.name for limit in named(limits, "task")] == ["task", "task#2", "task#3", "task#4"]
    with pytest.raises(ConfigurationError, match=r"here: .*'leese'"):
        limits_of({"limit": 5, "leese": 10}, {}, "here")


def demand(name: str, taken: int = 1, **options: Any) -> LimitRequest:
    limit = Limit("100/s", burst=100, name=name, **options)
    return LimitRequest(limit, name, "", taken)


@pytest.mark.parametrize(
    ("demands", "name", "actual"),
    [
        # Whose cost comes from the arguments; else who takes more than one; else all.
        ([demand("calls"), demand("tokens", 40, cost="tokens")], None, [1, 7]),
        ([demand("calls"), demand("tokens", 40)], None, [1, 7]),
        ([demand("calls"), demand("more")], None, [7, 7]),
        ([demand("calls"), demand("tokens", 40, cost="tokens")], "calls", [7, 40]),
    ],
)
def test_what_an_actual_cost_is_meant_for(demands: list[LimitRequest], name: str | None, actual: list[int]) -> None:
    assert actual_costs(demands, 7, name) == actual


def test_an_actual_cost_for_a_limit_that_is_not_there() -> None:
    with pytest.raises(ConfigurationError, match=r"no limit 'other' in this decision \(limits: calls\)"):
        actual_costs([demand("calls")], 7, "other")


def test_actual_costs_by_the_names_of_their_limits() -> None:
    asked = [demand("calls"), demand("tokens", 40), demand("bytes", 9)]
    assert actual_costs(asked, {"tokens": 7, "calls": 0}, None) == [0, 7, 9]
    with pytest.raises(ConfigurationError, match=r"no limit 'tokes' in this decision \(limits: calls, tokens, bytes\)"):
        actual_costs(asked, {"tokens": 7, "tokes": 1}, None)
    with pytest.raises(ConfigurationError, match=r"name no limit \(limits: calls, tokens, bytes\)"):
        actual_costs(asked, {}, None)
    with pytest.raises(ConfigurationError, match="name their limits: leave limit= out"):
        actual_costs(asked, {"tokens": 7}, "tokens")


def test_what_they_are_called() -> None:
    assert repr(Limit("10/s", algorithm="sliding_log", name="a")) == "Limit('10/s', algorithm='sliding_log', name='a')"
    assert str(Concurrency(5, name="gpu")) == "gpu: 5 at once"
    assert str(Limit("10/s", algorithm="sliding_log")) == "limit: 10/s"


def test_impossible_requests_say_what_the_limit_holds() -> None:
    assert "it holds 30 at most" in str(ImpossibleRequest("api", 31, Limit("1/s", burst=10, debt=20).most))
