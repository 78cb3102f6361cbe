"""Stored limits: which options they have of their own, and which of the code's limit."""

from __future__ import annotations

from typing import Any

import pytest

from celery_ratelimit import Adaptive, Concurrency, Limit, Limiter
from celery_ratelimit.limiter.setting_operations import _NOT_STORED
from celery_ratelimit.limits.stored_settings import limit_stored, limit_to_store

RESERVE = Limit("10/s", burst=10, priority_reserve={0: 0.2}, cost=3)


@pytest.mark.parametrize(
    ("said", "adapts"),
    [
        ({}, True),
        ({"algorithm": "token_bucket", "refill": "continuous", "warmup": 0}, True),
        ({"refill": "interval"}, False),
        ({"warmup": 5}, False),
        ({"algorithm": "sliding_log"}, False),
    ],
)
def test_stored_rate_adapts_if_its_bucket_refills_evenly(said: dict[str, Any], adapts: bool) -> None:
    stored: Any = limit_stored("api", {"rate": "5/s", **said}, Limit("1/s", adaptive=True))
    assert stored.adaptive == (Adaptive() if adapts else None)


@pytest.mark.parametrize(
    ("said", "code", "options"),
    [
        ({"limit": 5}, None, {"name": "api", "lease": 60.0, "cost": 1}),
        ({"limit": 5}, Concurrency(2, lease=10, cost=2), {"lease": 10, "cost": 2, "limit": 5}),
        ({"limit": 1}, Concurrency(2, cost=2), {"cost": 2}),  # in force, though no call can have its permits
        ({"rate": "5/s"}, Limit("1/s", key="{a}", per_worker=True), {"key": "{a}", "per_worker": True, "rate": "5/s"}),
        ({"rate": "5/s", "burst": 9}, RESERVE, {"cost": 3, "priority_reserve": RESERVE.priority_reserve}),
        ({"rate": "5/s", "debt": 5}, RESERVE, {"cost": 3, "priority_reserve": None}),
        ({"rate": "5/s", "algorithm": "sliding_log"}, RESERVE, {"cost": 3, "priority_reserve": None}),
        # Of the other kind: the code has changed.
        ({"rate": "5/s"}, Concurrency(2, cost=2, key="{a}"), {"rate": "5/s", "cost": 1, "key": None}),
        ({"limit": 5}, Limit("1/s", key="{a}", adaptive=True), {"limit": 5, "cost": 1, "key": None}),
    ],
)
def test_options_that_are_not_stored_are_those_of_the_code(said: Any, code: Any, options: dict[str, Any]) -> None:
    stored = limit_stored("api", said, code)
    assert {name: getattr(stored, name) for name in options} == options


def test_rate_to_store_has_the_other_options_of_the_code() -> None:
    assert limit_to_store("api", "5/s", Limit("1/s", burst=3)) == Limit("5/s", burst=3, name="api")
    assert limit_to_store("api", "5/s", None) == Limit("5/s", name="api")
    assert limit_to_store("api", Limit("5/s"), Limit("1/s", burst=3)) == Limit("5/s", name="api")


def test_set_rate_documents_each_option_that_is_not_stored() -> None:
    said = (Limiter.set_rate.__doc__ or "").partition("It is stored without")[2].partition(").\n")[0]
    named = set(said.replace(",", " ").replace("(the code's hold)", "").replace("(none is in force", "").split())
    assert named - {"and"} == _NOT_STORED
