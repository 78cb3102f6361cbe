"""Options of limits: values that are errors, and the last valid ones."""

from __future__ import annotations

import dataclasses
import math
import re
from typing import Any

import pytest

from celery_ratelimit import Adaptive, AsyncLimiter, Breaker, Concurrency, ConfigurationError, Limit, Limiter
from celery_ratelimit.limits.rate_limit import ALGORITHMS

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


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("option", OWN_OPTIONS)
def test_option_of_another_algorithm_error_names_both(option: str, algorithm: str) -> None:
    assert {each.name for each in dataclasses.fields(Limit)} == OWN_OPTIONS.keys() | SHARED
    value, takes = OWN_OPTIONS[option]
    if algorithm == takes:
        burst = {"burst": 10} if option == "priority_reserve" else {}
        assert getattr(Limit("10/s", algorithm=algorithm, **burst, **{option: value}), option)
        return
    own = ", ".join(each for each, (_, owner) in OWN_OPTIONS.items() if owner == algorithm)
    with pytest.raises(ConfigurationError) as caught:
        Limit("10/s", name="api", algorithm=algorithm, **{option: value})
    text = f"Limit('10/s', name='api'): {option}={value!r} is for algorithm={takes!r}, not {algorithm!r}"
    assert str(caught.value) == f"{text}, {f'whose own options are {own}' if own else 'which has no option of its own'}"


WHOLE = "whole number of at least 1"


LIMIT_ERRORS: list[tuple[dict[str, Any], str]] = [
    ({"algorithm": "gcra"}, r"algorithm='gcra' is not one of token_bucket, leaky_bucket"),
    ({"algorithm": None}, "algorithm=None is not one of"),
    ({"algorithm": "concurrency"}, r"algorithm='concurrency' is not one of .*: use Concurrency"),
    ({"algorithm": "fixed_window", "align": "utc"}, r"align='utc' is not one of clock, first"),
    ({"refill": "greedy"}, r"refill='greedy' is not one of continuous, interval"),
    ({"debt": -1}, r"debt=-1 must be a whole number of at least 0"),
    ({"debt": 1.5}, r"debt=1.5 must be a whole number"),
    ({"algorithm": "leaky_bucket", "capacity": -1}, r"capacity=-1 must be a whole number of at least 0"),
    ({"algorithm": "sliding_window", "sub_windows": 1001}, r"sub_windows=1001 is more than 1000, .*'sliding_log'"),
    ({"algorithm": "sliding_window", "sub_windows": 0}, rf"sub_windows=0 must be a {WHOLE}"),
    *[
        ({"rate": rate, "algorithm": "sliding_window", "sub_windows": windows}, "raise sub_windows")
        for rate, windows in (("999999999/d", 1), ("600479911/900s", 60))
    ],
    ({"warmup": -1}, r"warmup=-1 must be a number of seconds"),
    *[({"warmup": value}, f"warmup={value} must be a number of seconds") for value in (math.inf, 1e9)],
    ({"warmup": 1, "debt": 1}, r"exclude one another"),
    ({"adaptive": "yes"}, "adaptive='yes' must be True, False or an Adaptive"),
    ({"breaker": 10}, "breaker=10 must be True, False or a Breaker"),
    ({"adaptive": True, "warmup": 5}, "leave warmup out"),
    ({"adaptive": True, "refill": "interval"}, "leave refill out"),
    ({"adaptive": True, "algorithm": "sliding_log"}, r"adaptive=Adaptive\(floor=0.1, recover=30.0\) is for algorithm"),
    ({"resume_over": 5, "debt": 1}, "resume_over=5 does not go together with .*debt"),
    ({"resume_over": -1}, r"resume_over=-1 must be a number of seconds"),
    ({"refill": "interval", "debt": 1}, r"exclude one another"),
    ({"headroom": 1}, r"headroom=1 must be a share from 0 to below 1"),
    ({"headroom": -0.1}, r"headroom=-0.1 must be a share"),
    ({"headroom": "3%"}, r"headroom='3%' must be a share"),
    ({"rate": "1/s", "algorithm": "fixed_window", "headroom": 0.1}, "'1/s'.* with headroom=0.1 would never let"),
    *[
        ({"rate": rate, "algorithm": "sliding_log"}, f"'{rate}'.* is not a whole number in a whole window.*1/2s")
        for rate in ("0.5/s", "1.5/m")
    ],
    *[
        ({"rate": rate, "algorithm": "sliding_log"}, f"'{rate}' is more than can be counted exactly in one window")
        for rate in ("1000000000/1000s", "1000000/1000000000s")
    ],
    *[
        ({"rate": rate}, "more digits than can be kept exactly")
        for rate in ("1000000000/1000.000001s", "1/1000000000s")
    ],
    ({"rate": f"1/{'9' * 5000}s"}, "more digits than can be kept exactly"),
    ({"rate": 5, "algorithm": "sliding_log"}, "cannot read the rate 5"),
    *[
        ({"burst": burst}, rf"'100/s'.*burst={re.escape(repr(burst))}.*{WHOLE}")
        for burst in (0, -1, "x", "5", 1.5, 1.0, True, False, None, math.nan, math.inf, [1])
    ],
    ({"rate": "1/d", "burst": 13_032}, r"burst=13032 at this rate would take 35 years to refill"),
    *[
        ({"burst": 10, "cost": cost}, rf"cost={re.escape(repr(cost))}")
        for cost in (0, -1, 1.5, True, False, None, math.nan, math.inf, -math.inf, 1j, [1], b"1")
    ],
    ({"rate": "2000000/s", "algorithm": "sliding_log"}, "above one permit a microsecond"),
    ({"burst": 10, "cost": 11}, r"limit 'api' can never grant 11 permits at once: it holds 10 at most.*at least 11"),
    ({"rate": "5/s", "algorithm": "sliding_log", "cost": 6}, "can never grant"),
    ({"rate": "5/s", "algorithm": "leaky_bucket", "cost": 2}, "can never grant"),
    ({"rate": "5/s", "burst": 3, "debt": 2, "cost": 6}, "can never grant"),
    ({"cost": "estimate"}, r"cost='estimate' takes from 1 permit up, but the limit holds 1 at most.*: give it burst="),
    ({"cost": "estimate", "algorithm": "leaky_bucket"}, "take algorithm='token_bucket' with burst="),
    ({"cost": "estimate", "rate": "1/s", "algorithm": "sliding_log"}, "make its window's count larger"),
    ({"cost": len}, r"cost='len' takes.*burst="),
    ({"algorithm": "leaky_bucket", "capacity": 5, "max_parked": 5}, r"max_parked=5 is about parked tasks, .* capacity"),
    *[
        ({"burst": 10, "priority_reserve": {priority: 0.2}}, f"{priority!r} is no priority")
        for priority in ("high", -1, 256, True)
    ],
    *[
        ({"burst": 10, "priority_reserve": reserve}, text)
        for reserve, text in [
            ({}, "must be a mapping of priorities to shares"),
            (0.2, "must be a mapping of priorities to shares"),
            ({0: 0.2, "0": 0.1}, "'0' is no priority: take each number that messages are sent with once"),
            ({0: 0}, "0 must be a share of the burst between 0 and 1"),
            ({0: 1}, "1 must be a share of the burst between 0 and 1"),
            ({0: math.nan}, "must be a share of the burst"),
            ({0: "0.2"}, "must be a share of the burst"),
            ({0: 1e-9}, "is less than one permit"),
            ({0: 0.09}, "is less than one permit: give it burst= of 12 or more"),
            ({0: 0.5, 3: 0.5}, "leaves 0 of burst=10 .* too little for one permit"),
        ]
    ],
    *[
        ({"burst": 10, "priority_reserve": {0: 0.5}, **options}, text)
        for options, text in [
            ({"cost": 6}, "leaves 5 of burst=10 .* too little for a call that costs 6"),
            ({"debt": 1}, "exclude one another"),
            ({"warmup": 1}, "exclude one another"),
            ({"refill": "interval"}, "exclude one another"),
            ({"burst": 1}, "is less than one permit: give it burst= of 2 or more"),
        ]
    ],
    *[
        ({"key": "{model}", "rates": {"a": "3/m"}, **options}, text)
        for options, text in [
            ({"key": None}, "give it key="),
            ({"per_worker": True}, "leave per_worker out"),
            ({"rates": {"a": "many"}}, "cannot read the rate 'many'"),
            ({"rates": {}}, "keys and their rates"),
            ({"rates": {"a": 5}}, "keys and their rates"),
            ({"rates": "10/m"}, "must be a dict of keys to rates"),
            ({"rates_ttl": 0}, "rates_ttl=0 must be"),
            ({"rate": "5/m", "algorithm": "sliding_log", "cost": 4}, "4"),
        ]
    ],
]


#: Options of limits of either kind.
COMMON_ERRORS: list[tuple[dict[str, Any], str]] = [
    ({"name": ""}, "name='' must be a text"),
    ({"shadow": 1}, "shadow=1 must be True or False"),
    ({"name": 5}, "name=5 must be a text"),
    ({"key": 5}, "key=5 must be a template"),
    ({"key": b"x"}, "key=b'x' must be a template"),
    ({"key": "tenant:{"}, "key='tenant:{' is not a template"),
    ({"key": "tenant:}"}, "key='tenant:}' is not a template"),
    *[({"key": key}, "must name the task's arguments") for key in ("tenant:{}", "{0}", "tenant:{tenant id}")],
    ({"key": "{a}", "missing_key": "skip"}, "missing_key='skip' is not one of 'error', 'exempt', 'shared'"),
    ({"missing_key": "shared"}, "missing_key='shared' is for a limit with key="),
    *[
        ({"max_parked": value}, rf"max_parked=.* must be a {WHOLE}")
        for value in (0, -1, 1.0, 2.5, "9", True, math.nan, 2**53, [1])
    ],
    ({"fair": 7}, "fair=7 must be a template"),
    ({"fair": "{0}"}, r"fair='\{0\}' must name the task's arguments"),
    ({"fair": "{"}, "is not a template"),
    ({"weights": {"a": 1}}, "name them with fair="),
    ({"fair": "{a}", "weights": [("a", 1)]}, "must be a mapping"),
    ({"fair": "{a}", "weights": {7: 1}}, "has the key 7, which is no text"),
    ({"fair": "{a}", "weights": {"a": -1}}, "weight -1 of 'a' must be 0"),
    *[
        ({"fair": "{a}", "weights": {"a": weight}}, rf"weight {re.escape(repr(weight))} of 'a'")
        for weight in (math.nan, math.inf, True, "4", 1e308)
    ],
    *[({"fair": "{a}", "weights": {"a": weight}}, "from 0.001 to 1000000") for weight in (1e-4, 1e7)],
]


CONCURRENCY_ERRORS: list[tuple[dict[str, Any], str]] = [
    ({"limit": 0}, r"Concurrency\(0, name='api'\): the limit must be a whole number"),
    ({"limit": 10**9}, r"Concurrency\(1000000000, .*: the limit must be a whole number, 1 to 999999999"),
    ({"limit": 1.5}, r"Concurrency\(1.5, .*: the limit must be a whole number"),
    ({"limit": True}, r"the limit must be a whole number"),
    ({"lease": 0}, r"lease=0 must be a number of seconds"),
    ({"lease": math.nan}, r"lease=nan must be a number of seconds"),
    ({"shadow": True}, "shadow"),
    ({"cost": 6, "name": None}, "limit 'limit' can never grant 6 permits at once"),
]


@pytest.mark.parametrize(
    ("kind", "options", "text"),
    [
        *[(Limit, {"rate": "100/s", **options}, text) for options, text in [*LIMIT_ERRORS, *COMMON_ERRORS]],
        *[(Concurrency, {"limit": 5, **options}, text) for options, text in [*CONCURRENCY_ERRORS, *COMMON_ERRORS]],
    ],
)
def test_invalid_option_error_names_option_and_limit(kind: Any, options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigurationError, match=text) as caught:
        kind(**{"name": "api", **options})
    assert "name" in options or "rate" in options or "'api'" in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        *[(Adaptive, {"floor": value}) for value in (0, 1, "0.1", math.nan, True)],
        *[(Adaptive, {"recover": value}) for value in (0.5, 86401, "30", math.nan)],
        *[(Breaker, {"open_after": value}) for value in (0, 1001, 1.5, True)],
        *[(Breaker, {"of_last": value}) for value in (9, 1001, 10.5, True)],
        *[(Breaker, {"half_open_every": value}) for value in (0.05, 86401, "5", math.nan)],
        *[(Breaker, {"errors": value}) for value in ((), (SystemExit,), (ValueError("no"),), "ValueError")],
    ],
)
def test_invalid_adaptive_or_breaker_error_names_the_option(kind: Any, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=f"^{kind.__name__}: {next(iter(options))}=.* must be"):
        kind(**options)


@pytest.mark.parametrize(
    ("quotas", "why"),
    [
        ({"stripe": "a lot"}, r"quotas\['stripe'\]: .*'a lot'"),
        ({"stripe": "5 per fortnight"}, r"quotas\['stripe'\]: cannot read the rate '5 per fortnight'"),
        ({"stripe": 100}, r"quotas\['stripe'\]: 100 is not a limit"),
        ({"stripe": {"rate": "1/s", "brust": 2}}, r"quotas\['stripe'\]: .*brust"),
        ({"stripe": None}, "None is not a limit"),
        (["stripe"], r"quotas=\['stripe'\] must be a mapping"),
    ],
)
def test_invalid_quota_is_an_error_at_once(quotas: Any, why: str) -> None:
    for kind in (Limiter, AsyncLimiter):
        with pytest.raises(ConfigurationError, match=why):
            kind.from_url("redis://nowhere", quotas=quotas)  # type: ignore[attr-defined]


def test_values_at_the_edge_are_valid() -> None:
    assert Limit("1/d", burst=13_031).burst == 13_031
    assert Concurrency(999_999_999, lease=0.1, cost=len).lease == 0.1
    for recover in (1, 86_400):
        assert Adaptive(floor=0.001, recover=recover).wire() == (recover * 500_000, 1000)
    assert Adaptive(floor=1e-9).wire() == (15_000_000, 1)
    assert Breaker(1000, half_open_every=0.1, errors=ValueError).errors == (ValueError,)  # type: ignore[arg-type]
    assert Limit("1/s", breaker=True).breaker == Breaker(10, half_open_every=5.0, errors=(Exception,))
    assert Breaker(1, half_open_every=86_400, of_last=1000).of_last == 1000
    assert Limit("5/s", burst=3, debt=2, cost=5).most == 5
    assert Limit("5/s", algorithm="sliding_log", cost=5).most == 5
    assert Limit("1/s", algorithm="leaky_bucket", max_parked=5).max_parked == 5
    Limit("99999999/d", algorithm="sliding_window", sub_windows=1000)
    Limit("600479910/900s", algorithm="sliding_window", sub_windows=60)
    Limit("99999999/d", algorithm="fixed_window")
    Limit("10/s", burst=2, priority_reserve={0: 0.5}, cost="tokens")
    whole = Limit("100/s", burst=10, cost=2.0).cost  # type: ignore[arg-type]
    assert (whole, type(whole)) == (2, int)
    for kind in (Limit("1/s", key="{a}", missing_key="shared"), Concurrency(2, key="{a}", missing_key="shared")):
        assert kind.missing_key == "shared"
