"""``coalesce=`` and ``coalesce_key=``: valid values, and the equality of two calls."""

from __future__ import annotations

from typing import Any

import pytest

from celery_ratelimit import ConfigurationError, Limit, RateLimitedTask
from celery_ratelimit.app.plan import Plan
from tests.unit.apps import plan_of

LEAKY = Limit("1/s", algorithm="leaky_bucket", capacity=3)


def sync(account_id: int, reason: str = "", *, force: bool = False) -> None: ...


def plan_with(**options: Any) -> Plan:
    return plan_of(sync, name="sync", base=RateLimitedTask, **{"limits": "10/s", **options})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"coalesce": "latest"}, "task 'sync': coalesce='latest' is not one of 'newest', 'oldest'"),
        ({"coalesce": True}, "coalesce=True is not one of"),
        ({"coalesce_key": "{account_id}"}, "coalesce_key='{account_id}' .*coalesce"),
        ({"coalesce": "newest", "throttle": "wait"}, "throttle='wait' leaves the backlog in the broker"),
        ({"coalesce": "newest", "throttle": "drop"}, "throttle='drop' lets no task wait"),
        ({"coalesce": "newest", "throttle": "fail"}, "throttle='fail' lets no task wait"),
        ({"coalesce": "newest", "coalesce_key": "{acount_id}"}, "names the argument 'acount_id', .*account_id, reason"),
        ({"coalesce": "newest", "coalesce_key": "{"}, "coalesce_key='{' is not a template"),
        ({"coalesce": "newest", "coalesce_key": "{0}"}, "must name the task's arguments"),
        ({"coalesce": "newest", "coalesce_key": 7}, "coalesce_key=7 must be a template"),
        ({"coalesce": "newest", "limits": LEAKY}, "a leaky bucket with a capacity is a queue by itself"),
    ],
)
def test_what_cannot_be_is_said(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        plan_with(**options)


def test_coalesce_is_read_into_the_policy() -> None:
    assert plan_with(limits="1/s", coalesce="oldest").policy.coalesce == "oldest"
    assert plan_with().alone("sync", (1,), {}) == ""


def test_without_a_key_equal_arguments_coalesce() -> None:
    plan = plan_with(coalesce="newest")
    alone = plan.alone("sync", (1,), {})
    assert alone[0] == "n"
    assert len(alone) == 33
    assert plan.alone("sync", (), {"account_id": 1, "reason": ""}) == alone
    others = [((2,), {}), ((1, "new"), {}), ((1,), {"force": True}), (("1",), {})]
    assert len({plan.alone("sync", args, kwargs) for args, kwargs in others} | {alone}) == 5
    assert plan.alone("another", (1,), {}) != alone, "of a name"


@pytest.mark.parametrize("key", ["{account_id}", lambda account_id, reason="", force=False: account_id])
def test_coalesce_key_selects_the_arguments(key: Any) -> None:
    plan = plan_with(coalesce="oldest", coalesce_key=key)
    assert plan.alone("sync", (1, "a"), {}) == plan.alone("sync", (1,), {"force": True}) != plan.alone("sync", (2,), {})


def test_unfillable_coalesce_key_error_names_the_task() -> None:
    plan = plan_with(coalesce="oldest", coalesce_key="{account_id.id}")
    with pytest.raises(ConfigurationError, match=r"task 'sync': coalesce_key=.* cannot be filled"):
        plan.alone("sync", (1,), {})
