"""Rates as users write them."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_ratelimit import ConfigurationError, Limit
from celery_ratelimit.limits.parse_rate import parse_rate, period_of

SECOND, MINUTE, HOUR, DAY = 10**6, 60 * 10**6, 3600 * 10**6, 86400 * 10**6


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


def test_period_is_that_of_the_text() -> None:
    assert [period_of(text) for text in ("1000/h", "5/10s", "0.5/s")] == [3600.0, 10.0, 1.0]


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
