"""Limits are data: what can be written, what cannot, and what the error says."""

from __future__ import annotations

import copy
import dataclasses
import math
import os
import pickle
import re
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_ratelimit import ConfigurationError, ImpossibleRequest, Limit
from celery_ratelimit.limits.any_limit import check_cost, template_fields
from celery_ratelimit.limits.rate import parse_rate

SECOND, MINUTE, HOUR, DAY = 10**6, 60 * 10**6, 3600 * 10**6, 86400 * 10**6


@pytest.mark.parametrize(
    ("text", "count", "period_us"),
    [
        ("100/s", 100, SECOND),
        ("100/S", 100, SECOND),
        (" 100 / s ", 100, SECOND),
        ("100 per second", 100, SECOND),
        ("100 per seconds", 100, SECOND),
        ("100/sec", 100, SECOND),
        ("100/secs", 100, SECOND),
        ("100PER second", 100, SECOND),
        ("5/10s", 5, 10 * SECOND),
        ("5/10 s", 5, 10 * SECOND),
        ("7/m", 7, MINUTE),
        ("7/min", 7, MINUTE),
        ("7 per minute", 7, MINUTE),
        ("10 per 2 minutes", 10, 2 * MINUTE),
        ("1000/h", 1000, HOUR),
        ("1000/hr", 1000, HOUR),
        ("1000/hrs", 1000, HOUR),
        ("1 per 3 hours", 1, 3 * HOUR),
        ("1/d", 1, DAY),
        ("1/day", 1, DAY),
        ("3 per 2 days", 3, 2 * DAY),
        ("0.5/s", 1, 2 * SECOND),
        ("2.5/s", 5, 2 * SECOND),
        ("1/0.5s", 2, SECOND),
        ("1 per 1.5 hours", 2, 3 * HOUR),
        ("0.1/d", 1, 10 * DAY),
        ("3/s", 3, SECOND),
        ("70000/s", 70_000, SECOND),
        ("100000/s", 100_000, SECOND),
        ("1000000/s", 1, 1),
        ("200000/m", 200_000, MINUTE),
    ],
)
def test_rates_that_can_be_read(text: str, count: int, period_us: int) -> None:
    rate = parse_rate(text)
    assert rate.count * period_us == count * rate.period_us, "the same quotient"
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
def test_a_rate_that_cannot_be_read_is_named(text: Any) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Limit(text)
    assert repr(text) in str(caught.value)
    assert '"100/s"' in str(caught.value), "and the mend is shown"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("0/s", "would never let anything through"),
        ("0.0/s", "would never let anything through"),
        ("1/0s", "period of zero"),
        ("1/0.0 h", "period of zero"),
        ("0/0s", "period of zero"),
        ("1000001/s", "above one permit a microsecond"),
        ("2/0.000001s", "above one permit a microsecond"),
        ("12345.678901237/s", "more digits than can be kept exactly"),
        ("1/100000d", "more digits than can be kept exactly"),
        ("0.000000000001/d", "more digits than can be kept exactly"),
    ],
)
def test_a_rate_that_cannot_be_kept_is_named(text: str, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why) as caught:
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


@pytest.mark.parametrize("burst", [0, -1, "x", "5", 1.5, 1.0, True, False, None, math.nan, math.inf, [1]])
def test_an_impossible_burst_is_named(burst: Any) -> None:
    with pytest.raises(ConfigurationError, match="whole number of at least 1") as caught:
        Limit("100/s", burst=burst, name="api")
    assert f"burst={burst!r}" in str(caught.value)
    assert "'100/s'" in str(caught.value)
    assert "'api'" in str(caught.value)


def test_a_burst_that_would_take_years_to_refill_is_an_error() -> None:
    with pytest.raises(ConfigurationError, match=r"burst=100000.* years to refill"):
        Limit("1/d", burst=100_000)
    assert Limit("1/d", burst=10_000).burst == 10_000


@pytest.mark.parametrize("cost", [0, -1, 1.5, True, False, None, math.nan, math.inf, -math.inf, 1j, [1], b"1"])
def test_an_impossible_cost_is_named(cost: Any) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Limit("100/s", burst=10, name="api", cost=cost)
    assert f"cost={cost!r}" in str(caught.value)
    assert "'api'" in str(caught.value)


def test_a_cost_that_is_whole_may_be_written_as_a_float() -> None:
    assert Limit("100/s", burst=10, cost=2.0).cost == 2  # type: ignore[arg-type]
    assert type(Limit("100/s", burst=10, cost=2.0).cost) is int  # type: ignore[arg-type]


def test_a_cost_above_the_burst_is_an_error_when_the_limit_is_made() -> None:
    with pytest.raises(
        ConfigurationError, match=r"can never grant 11 permits at once: it holds 10 at most.*at least 11"
    ):
        Limit("100/s", burst=10, cost=11)


def test_check_cost_tells_the_impossible_from_the_wrong() -> None:
    assert check_cost("api", 10, 10) == 10
    with pytest.raises(ImpossibleRequest) as caught:
        check_cost("api", 11, 10)
    assert (caught.value.limit, caught.value.cost, caught.value.capacity) == ("api", 11, 10)
    with pytest.raises(ConfigurationError, match="multiply all numbers"):
        check_cost("api", 0.5, 10)


@pytest.mark.parametrize(
    ("option", "value", "why"),
    [
        ("algorithm", "leaky", "algorithm='leaky' is not one of token_bucket"),
        ("algorithm", None, "algorithm=None is not one of"),
        ("name", "", "name='' must be a text"),
        ("name", 5, "name=5 must be a text"),
        ("key", 5, "key=5 must be a template"),
        ("key", b"x", "key=b'x' must be a template"),
        ("key", "tenant:{", "key='tenant:{' is not a template"),
        ("key", "tenant:}", "key='tenant:}' is not a template"),
        ("cost", "estimate", r"cost='estimate' takes from 1 permit up, but the limit holds 1 at most.*burst="),
        ("cost", len, r"cost='len' takes.*burst="),
        ("key", "tenant:{}", "must name the task's arguments"),
        ("key", "tenant:{0}", r"must name the task's arguments.*not \{0\}"),
        ("key", "tenant:{tenant id}", "must name the task's arguments"),
    ],
)
def test_an_impossible_option_is_named(option: str, value: Any, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        Limit("100/s", **{option: value})


def test_an_unknown_option_is_an_error() -> None:
    with pytest.raises(TypeError, match="bursts"):
        Limit("100/s", bursts=5)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        Limit("100/s", 5)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("template", "fields"),
    [
        ("tenant:{tenant_id}", ["tenant_id"]),
        ("{a}:{b}", ["a", "b"]),
        ("{a.b.c}:{d[0]}", ["a", "d"]),
        ("{a!r:>10}", ["a"]),
        ("{{{braces}}}", ["braces"]),
    ],
)
def test_the_arguments_that_a_template_names(template: str, fields: list[str]) -> None:
    assert template_fields(template) == fields
    assert Limit("1/s", key=template).key == template


def test_a_limit_is_frozen_hashable_and_equal_by_value() -> None:
    limit = Limit("100/s", burst=5, name="api", key="{a}", cost="n")
    assert limit == Limit("100/s", burst=5, name="api", key="{a}", cost="n")
    assert hash(limit) == hash(Limit("100/s", burst=5, name="api", key="{a}", cost="n"))
    assert limit != Limit("100/s", burst=6, name="api", key="{a}", cost="n")
    assert limit != Limit("100/s", burst=5, name="other", key="{a}", cost="n")
    with pytest.raises(dataclasses.FrozenInstanceError):
        limit.burst = 10  # type: ignore[misc]
    named = dataclasses.replace(limit, name="new")
    assert (named.name, named.burst, named.rate) == ("new", 5, "100/s")
    assert hash(named) == hash(Limit("100/s", burst=5, name="new", key="{a}", cost="n"))
    with pytest.raises(ConfigurationError):
        dataclasses.replace(limit, burst=0)


def test_a_copy_and_a_pickle_are_equal() -> None:
    limit = Limit("100/s", burst=5, name="api", key="{a}")
    for other in (copy.copy(limit), copy.deepcopy(limit), pickle.loads(pickle.dumps(limit))):
        assert other == limit
        assert hash(other) == hash(limit)


def test_a_limit_from_another_process_is_found_in_a_mapping() -> None:
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
        (Limit("5/10s", name="stripe"), "stripe: 5/10s"),
        (Limit("5/10s", burst=2, name="stripe"), "stripe: 5/10s, burst 2"),
    ],
)
def test_a_limit_prints_as_it_reads(limit: Limit, text: str) -> None:
    assert str(limit) == text
