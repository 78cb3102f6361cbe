"""Texts for displays: lengths and times, numbers, names."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from celery_ratelimit import Limit, words
from celery_ratelimit.name_suggestions import listed, near, no_such_limit, plain
from celery_ratelimit.words import NO_END, clock, end_of, few_digits, length, number_of, seconds_of, unnamed

NOON = time.mktime((2026, 1, 1, 12, 0, 0, 0, 0, -1))


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("0.5", 0.5), ("10m", 600), ("1h30m", 5400), ("1.5h", 5400), ("2d", 172_800), ("45s", 45)],
)
def test_length_of_time_is_read(text: str, seconds: float) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        *[
            (text, "is no length of time: write 90, 10m or 1h30m")
            for text in ("soon", "", "m", "-5", "5 m", "1m30", "٣")
        ],
        *[(text, "must be more than no time") for text in ("0", "0m", "9" * 400)],
    ],
)
def test_text_that_is_no_length_of_time_is_an_error(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        seconds_of(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "?"),
        (NO_END, "7300 d"),  # twenty years
        (NO_END + 1, "?"),
        (0.04, "0.0 s"),
        (59.9, "59.9 s"),
        (60, "1 min"),
        (3725, "1 h 2 min"),
        (7200, "2 h"),
        (90_061, "1 d 1 h"),
        (86_405, "1 d 5 s"),
    ],
)
def test_length_has_its_two_largest_units(seconds: float | None, text: str) -> None:
    assert length(seconds) == text


def test_time_of_day_has_its_date_if_it_is_not_today(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words.time, "time", lambda: NOON)
    for now in ((), (NOON,)):
        assert [clock(at, *now) for at in (None, NOON + 60, NOON + 86_400, NOON + NO_END + 1)] == [
            *("", "12:01:00", "2026-01-02 12:00:00", "never"),
        ]
        assert [end_of("resumed", at, *now) for at in (NOON + 60, NOON + NO_END + 1)] == [
            *("until 12:01:00", "until resumed"),
        ]


@pytest.mark.parametrize(
    ("shown", "value", "text"),
    [
        (number_of, 0, "0 tasks"),
        (number_of, 1, "1 task"),
        (few_digits, 0.216, "0.22"),
        (few_digits, 9.94, "9.9"),
        (few_digits, 9.95, "10"),
        (few_digits, 93.4, "93"),
        (unnamed, None, "?"),
        (unnamed, Limit("100/s", name="api"), "100/s"),
        (plain, "a\nb\x1b[31m é", "a\\nb\\x1b[31m é"),
        (listed, [], "there is none here"),
        (listed, ["b", "a"], "there are 'a', 'b'"),
        (listed, map(str, range(10, 35)), f"there are {', '.join(map(repr, map(str, range(10, 30))))} and 5 more"),
    ],
)
def test_values_as_text(shown: Callable[[object], str], value: object, text: str) -> None:
    assert shown(value) == text


def test_unknown_name_error_suggests_known_ones() -> None:
    assert near("strip", ["stripe", "gpu", "scrape"]) == "did you mean 'stripe'?"
    assert near("x", ["stripe"]) == ""
    told = "No limit is called 'strip'. Did you mean 'stripe'? (force=True accepts any name)"
    assert no_such_limit("strip", ["stripe"]) == told
    assert no_such_limit("x", []) == "No limit is called 'x'. There is none here. (force=True accepts any name)"
