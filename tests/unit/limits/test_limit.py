"""Limits are data: rates and options, as users write them and as the scripts read them."""

from __future__ import annotations

import copy
import dataclasses
import math
import os
import pickle
import re
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_ratelimit import Adaptive, Breaker, Concurrency, ConfigurationError, Decision, Limit
from celery_ratelimit.limiter.argument_checks import actual_costs
from celery_ratelimit.limiter.limit_request import LimitRequest
from celery_ratelimit.limits.decision import GrantedAt, LimitState
from celery_ratelimit.limits.limit import ALGORITHMS
from celery_ratelimit.limits.rate import parse_rate

SECOND, MINUTE, HOUR, DAY = 10**6, 60 * 10**6, 3600 * 10**6, 86400 * 10**6

# -- Rates -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("texts", "count", "period_us"),
    [
        ("100/s, 100/S, 100 / s , 100 per second, 100 per seconds, 100/sec, 100/secs, 100PER second", 100, SECOND),
        ("5/10s, 5/10 s", 5, 10 * SECOND),
        ("7/m, 7/min, 7 per minute", 7, MINUTE),
        ("10 per 2 minutes", 10, 2 * MINUTE),
        ("1000/h, 1000/hr, 1000/hrs", 1000, HOUR),
        ("1 per 3 hours", 1, 3 * HOUR),
        ("1/d, 1/day", 1, DAY),
        ("3 per 2 days", 3, 2 * DAY),
        ("0.5/s", 1, 2 * SECOND),
        ("2.5/s", 5, 2 * SECOND),
        ("1/0.5s", 2, SECOND),
        ("1 per 1.5 hours", 2, 3 * HOUR),
        ("0.1/d", 1, 10 * DAY),
        ("3/s", 3, SECOND),
        ("70000/s", 70_000, SECOND),
        ("1000000/s", 1, 1),
        ("200000/m", 200_000, MINUTE),
    ],
)
def test_rate_is_an_exact_quotient(texts: str, count: int, period_us: int) -> None:
    for text in texts.split(","):
        rate = parse_rate(text)
        assert rate.count * period_us == count * rate.period_us
        assert math.gcd(rate.count, rate.period_us) == 1
        assert rate.per_second == pytest.approx(count * 1e6 / period_us, rel=1e-12)
        assert rate.interval == pytest.approx(period_us / count / 1e6, rel=1e-12)


@pytest.mark.parametrize(
    "text",
    [
        *("100/ms", "100/us", "abc", "-1/s", "+1/s", "", " ", "100", "100/", "/s", "s", "100 s", "100//s", "1e3/s"),
        *("100 per", "100per", "per second", "100 pers", "1,000/s", "1_000/s", "1/-1s", "nan/s", "inf/s", "100/s/s"),
        *("100/w", "100/week", "100/month", "100/y", "0x10/s", ".5/s", "5./s", "100/s\n100/s", "100/5"),
        *("٣/s", "3/٣s", "１００/s", "1.٥/s"),
        *(5, 0.5, None, True, b"100/s", ("100/s",), ["100/s"], {"rate": "100/s"}, object),
    ],
)
def test_unreadable_rate_error_names_it_and_shows_a_valid_one(text: Any) -> None:
    with pytest.raises(ConfigurationError, match='"100/s"') as caught:
        Limit(text)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize(
    ("texts", "reason"),
    [
        (["0/s", "0.0/s"], "would never let anything through"),
        (["1/0s", "1/0.0 h", "0/0s"], "period of zero"),
        (["1000001/s", "2/0.000001s"], "above one permit a microsecond"),
        (["12345.678901237/s", "1/100000d", "0.000000000001/d"], "more digits than can be kept exactly"),
        ([f"{'9' * 50}/s", f"1/{'9' * 50}s"], "more digits than can be kept exactly"),
    ],
)
def test_inexact_or_empty_rate_error_names_it(texts: list[str], reason: str) -> None:
    for text in texts:
        with pytest.raises(ConfigurationError, match=reason) as caught:
            Limit(text)
        assert repr(text) in str(caught.value)


@given(st.text(max_size=30) | st.from_regex(r"\A[0-9.]{1,12}(/| per )[0-9.]{0,12} ?(s|min|h|days)\Z"))
def test_any_text_is_a_rate_or_a_configuration_error(text: str) -> None:
    try:
        rate = parse_rate(text)
    except ConfigurationError:
        with pytest.raises(ConfigurationError, match=re.escape(repr(text))):
            parse_rate(text)
    else:
        assert 1 <= rate.count < 10**9
        assert 1 <= rate.period_us < 10**15


# -- Options -----------------------------------------------------------------------------------------------------------


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
        (Limit("100/s", headroom=0.03), ("token_bucket", 97, 1_000_000, 1, 1, 0)),
        (Limit("100/s", headroom=0.03, algorithm="fixed_window"), ("fixed_window", 97, 1_000_000, 97, 1, 0)),
        (Limit("97/s", headroom=0.03, algorithm="sliding_log"), ("sliding_log", 97, 1_030_928, 97, 1, 0)),
        (Limit("1/s", headroom=0.5, algorithm="fixed_window", align="first"), ("fixed_window", 1, 2_000_000, 1, 1, 1)),
        (Limit("10/s", burst=10, priority_reserve={0: 0.2}), ("token_bucket", 1, 100_000, 10, 1, -200_000_200_000)),
    ],
    ids=str,
)
def test_options_reach_the_scripts_as_numbers(limit: Limit | Concurrency, wire: tuple[Any, ...]) -> None:
    assert limit.wire(1) == wire
    assert pickle.loads(pickle.dumps(limit)).wire(1) == wire
    assert replace(limit, name="other").wire(1) == wire


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


# -- Invalid values ----------------------------------------------------------------------------------------------------

WHOLE = "whole number of at least 1"
LIMIT_ERRORS: list[tuple[dict[str, Any], str]] = [
    ({"algorithm": "gcra"}, r"algorithm='gcra' is not one of token_bucket, leaky_bucket"),
    ({"algorithm": None}, "algorithm=None is not one of"),
    ({"algorithm": "concurrency"}, r"algorithm='concurrency' is not one of .*: for places, take Concurrency"),
    ({"algorithm": "fixed_window", "align": "utc"}, r"align='utc' is not one of clock, first"),
    ({"refill": "greedy"}, r"refill='greedy' is not one of continuous, interval"),
    ({"debt": -1}, r"debt=-1 must be a whole number of at least 0"),
    ({"debt": 1.5}, r"debt=1.5 must be a whole number"),
    ({"algorithm": "leaky_bucket", "capacity": -1}, r"capacity=-1 must be a whole number of at least 0"),
    ({"algorithm": "sliding_window", "sub_windows": 1001}, r"sub_windows=1001 is more than 1000, .*'sliding_log'"),
    ({"algorithm": "sliding_window", "sub_windows": 0}, rf"sub_windows=0 must be a {WHOLE}"),
    ({"rate": "999999999/d", "algorithm": "sliding_window", "sub_windows": 1}, "raise sub_windows"),
    ({"warmup": -1}, r"warmup=-1 must be a number of seconds"),
    ({"warmup": math.inf}, r"warmup=inf must be a number of seconds"),
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
    ({"rate": "1000000000/1000.000001s"}, "more digits than can be kept exactly"),
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
    ({"burst": 10, "cost": 11}, r"can never grant 11 permits at once: it holds 10 at most.*at least 11"),
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


def test_values_at_the_edge_are_valid() -> None:
    assert Limit("1/d", burst=13_031).burst == 13_031
    assert Concurrency(999_999_999, lease=0.1, cost=len).lease == 0.1
    for recover in (1, 86_400):
        assert Adaptive(floor=0.001, recover=recover).wire() == (recover * 500_000, 1000)
    assert Breaker(1000, half_open_every=0.1, errors=ValueError).errors == (ValueError,)  # type: ignore[arg-type]
    assert Limit("1/s", breaker=True).breaker == Breaker()
    assert Breaker(1, half_open_every=86_400, of_last=1000).of_last == 1000
    assert Limit("5/s", burst=3, debt=2, cost=5).most == 5
    assert Limit("5/s", algorithm="sliding_log", cost=5).most == 5
    assert Limit("1/s", algorithm="leaky_bucket", max_parked=5).max_parked == 5
    Limit("99999999/d", algorithm="sliding_window", sub_windows=1000)
    whole = Limit("100/s", burst=10, cost=2.0).cost  # type: ignore[arg-type]
    assert (whole, type(whole)) == (2, int)
    for kind in (Limit("1/s", key="{a}", missing_key="shared"), Concurrency(2, key="{a}", missing_key="shared")):
        assert kind.missing_key == "shared"


# -- Actual costs ------------------------------------------------------------------------------------------------------


def demand(name: str, taken: int = 1, **options: Any) -> LimitRequest:
    return LimitRequest(Limit("100/s", burst=100, name=name, **options), name, "", taken)


CALLS = demand("calls")
COMPUTED, TOKENS, BYTES = demand("tokens", 40, cost="tokens"), demand("tokens", 40), demand("bytes", 9)


@pytest.mark.parametrize(
    ("demands", "cost", "name", "actual"),
    [
        ([CALLS, COMPUTED], 7, None, [1, 7]),  # the limit whose cost comes from the arguments
        ([CALLS, TOKENS], 7, None, [1, 7]),  # or which takes more than one
        ([CALLS, demand("more")], 7, None, [7, 7]),  # or all limits
        ([CALLS, COMPUTED], 7, "calls", [7, 40]),
        ([CALLS, TOKENS, BYTES], {"tokens": 7, "calls": 0}, None, [0, 7, 9]),
        ([CALLS], 7, "other", r"no limit 'other' in this decision \(limits: calls\)"),
        ([CALLS, TOKENS], {"tokens": 7, "tokes": 1}, None, r"no limit 'tokes' in this decision \(limits: calls, tok"),
        ([CALLS, TOKENS], {}, None, r"name no limit \(limits: calls, tokens\)"),
        ([CALLS, TOKENS], {"tokens": 7}, "tokens", "name their limits: leave limit= out"),
    ],
)
def test_actual_costs(demands: list[LimitRequest], cost: Any, name: str | None, actual: Any) -> None:
    if isinstance(actual, list):
        assert actual_costs(demands, cost, name) == actual
    else:
        with pytest.raises(ConfigurationError, match=actual):
            actual_costs(demands, cost, name)


# -- Limits and decisions as values ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "change"),
    [
        (Limit("100/s", burst=5, name="api", key="{a}", cost="n"), {"burst": 6}),
        (Limit("5/s", name="stripe", fair="{tenant_id}", weights={"gold": 4, "held": 0}), {"weights": {"gold": 3}}),
        (Limit("10/s", burst=10, priority_reserve={3: 0.2, "0": 0.1}), {"priority_reserve": {0: 0.2}}),
        (Limit("5/m", name="tokens", key="{model}", rates={"a": "10/m", "*": "2/m"}), {"rates": {"*": "1/m"}}),
        (Concurrency(3, name="places", fair="{tenant_id}", weights={"gold": 2}), {"limit": 4}),
    ],
)
def test_limit_is_frozen_hashable_and_equal_by_value(limit: Any, change: dict[str, Any]) -> None:
    for same in (eval(repr(limit)), copy.copy(limit), copy.deepcopy(limit), pickle.loads(pickle.dumps(limit))):
        assert (same, hash(same)) == (limit, hash(limit))
    assert len({limit, replace(limit), replace(limit, name="other"), replace(limit, **change)}) == 3
    assert replace(limit, **change) != limit
    with pytest.raises(dataclasses.FrozenInstanceError):
        limit.name = "other"
    with pytest.raises(ConfigurationError):
        replace(limit, name=5)


def test_options_of_a_limit_are_keywords_that_exist() -> None:
    for arguments, more in (((), {"bursts": 5}), ((5,), {})):
        with pytest.raises(TypeError):
            Limit("100/s", *arguments, **more)  # type: ignore[arg-type]


def test_limit_from_another_process_is_found_in_a_mapping() -> None:
    """Texts hash differently in every process; a limit that comes from another must hash as one made here."""
    there = (
        "import pickle, sys; from celery_ratelimit import Limit;"
        "limit = pickle.loads(sys.stdin.buffer.read());"
        "sys.exit(0 if limit in {Limit('100/s', name='api'): 1} else 'not found')"
    )
    result = subprocess.run(
        [sys.executable, "-c", there],
        input=pickle.dumps(Limit("100/s", name="api")),
        env={**os.environ, "PYTHONHASHSEED": "1"},
        capture_output=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr.decode()


@pytest.mark.parametrize(
    ("limit", "text"),
    [
        (Limit("100/s"), "limit: 100/s"),
        (Limit("100/s", burst=10), "limit: 100/s, burst 10"),
        (Limit("5/10s", burst=2, name="stripe"), "stripe: 5/10s, burst 2"),
        (Limit("10/s", algorithm="sliding_log"), "limit: 10/s"),
        (Concurrency(5, name="gpu"), "gpu: 5 at once"),
        (Limit("5/m", name="tokens", key="{a}", rates={"a": "10/m"}), "tokens: 5/m, rates by key"),
        (Limit("5/m", name="tokens", key="{a}", rates=dict.fromkeys), "tokens: 5/m, rates by fromkeys"),
    ],
)
def test_text_of_a_limit_is_its_rate_and_options(limit: Limit | Concurrency, text: str) -> None:
    assert str(limit) == text


def test_repr_of_a_limit_has_the_options_that_are_set() -> None:
    assert repr(Limit("100/s", burst=5)) == "Limit('100/s', burst=5)"


def test_decision_is_a_frozen_value_that_is_true_if_it_allows() -> None:
    state = LimitState(name="api", key="", capacity=5, remaining=4, reset_after=0.5)
    decision = Decision(True, 5, 4, 0.0, 0.5, None, (state,))
    plain = LimitState("api", "", 5, 4, 0.5, interval=0.0, version=0)
    assert decision == Decision(True, 5, 4, 0.0, 0.5, None, (plain,), False, "another id", 0, permits=0)
    assert repr(decision).endswith("queue_full=False, id='', _granted_at=0, permits=0)")
    assert hash(decision) == hash(replace(decision))
    for value in (decision, state):
        assert not hasattr(value, "__dict__")
        with pytest.raises(AttributeError):
            value.remaining = 0  # type: ignore[misc]
    assert decision
    assert not Decision(False, 5, 4, 0.5, 1.0, "api")


def test_permits_of_several_nodes_are_good_when_the_last_one_is() -> None:
    for granted in (GrantedAt({"api": 7, "gpu": 9}), pickle.loads(pickle.dumps(GrantedAt({"api": 7, "gpu": 9})))):
        assert (granted, granted.of("api"), granted.of("gpu"), granted.of("later")) == (9, 7, 9, 9)
