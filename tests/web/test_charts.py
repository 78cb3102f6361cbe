"""A limit over time, from its changes, and charts of its use."""

from __future__ import annotations

import pytest

from celery_ratelimit import Concurrency, Limit
from celery_ratelimit.counts.stats import Moment, Stats
from celery_ratelimit.limits.any_limit import AnyLimit
from celery_ratelimit.limits.stored_settings import Change, Stored
from celery_ratelimit.web.chart_data import RANGES, charts, limit_at

CODE = Limit("100/s", name="api")
NOW = 1_767_225_600.5  # the first half second of a minute
NOTHING = Stored(None, None, None, "")


def change(ago: float, verb: str, before: Stored = NOTHING, after: Stored = NOTHING, key: str = "") -> Change:
    return Change("api", key, NOW - ago, verb, "ann", "why", before, after)


def stored(rate: str, until: float | None = None) -> Stored:
    return Stored(Limit(rate, name="api"), until, None, rate)


@pytest.mark.parametrize(
    ("changes", "ago", "rate"),
    [
        ([], 0, 100),
        ([change(60, "set", after=stored("20/s"))], 61, 100),
        ([change(60, "set", after=stored("20/s"))], 59, 20),
        ([change(60, "set", after=stored("20/s", NOW - 30))], 31, 20),
        ([change(60, "set", after=stored("20/s", NOW - 30))], 29, 100),
        ([change(60, "unset", before=stored("20/s"))], 61, 20),
        ([change(60, "unset", before=stored("20/s"))], 59, 100),
        ([change(60, "pause", after=Stored(None, None, NOW - 30, ""))], 31, 0),
        ([change(60, "pause", after=Stored(None, None, NOW - 30, ""))], 29, 100),
        ([change(60, "resume", before=Stored(None, None, NOW + 30, ""))], 61, 100),
        ([change(60, "set", after=stored("20/s"), key="tenant:7")], 59, 100),
        ([change(60, "reset")], 59, 100),
        ([change(60, "weight", after=Stored(None, None, None, "weight 4"), key="gold")], 59, 100),
        ([change(60, "set", after=stored("20/s")), change(30, "reset")], 20, 20),
    ],
)
def test_limit_at_a_time_follows_its_changes(changes: list[Change], ago: float, rate: float) -> None:
    assert limit_at(CODE, changes)(NOW - ago) == pytest.approx(rate)


@pytest.mark.parametrize("code", [None, Concurrency(4, name="api"), Limit("5/s", name="api", key="{tenant}")])
def test_unknown_concurrency_and_keyed_limits_have_no_rate(code: AnyLimit | None) -> None:
    assert limit_at(code, [])(NOW) is None


def test_chart_for_each_range() -> None:
    now = int(NOW)
    stats = Stats(
        "api",
        NOW,
        {},
        0,
        (),
        0.0,
        seconds=(Moment(now - 179.0, 1, 50), Moment(float(now), 1, 7), Moment(now - 500.0, 1, 1)),
        minutes=(Moment(now - 86_340.0, 1, 1200), Moment(now - 60.0, 1, 3000), Moment(float(now), 1, 7)),
    )
    drawn = charts(stats, CODE, [change(7200, "resume"), change(60, "set", after=stored("20/s"))])
    assert list(drawn) == list(RANGES)
    seconds, hours, day = drawn.values()
    assert [len(each["values"]) for each in drawn.values()] == [180, 180, 144]
    assert (seconds["unit"], hours["unit"], day["unit"]) == ("second", "minute", "minute")
    assert (seconds["values"][0], seconds["values"][-1], sum(seconds["values"])) == (50, 7, 57)
    assert hours["values"][-2:] == [3000, 7]
    assert day["values"][-2:] == [300, 0.7], "a minute, on average over ten"
    assert (seconds["limits"][0], seconds["limits"][-1]) == (100, 20)
    assert (hours["limits"][0], hours["limits"][-1]) == (6000, 1200)
    assert [len(each["marks"]) for each in drawn.values()] == [1, 2, 2]
    (bar, text) = seconds["marks"][0]
    assert bar == 119.5
    assert text.endswith("ann, set: 20/s (why)")
    assert all(0 <= bar < 180 and text for bar, text in hours["ticks"])
