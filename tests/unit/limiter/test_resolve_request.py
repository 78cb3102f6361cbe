"""Calls name limits by name or as values, with a key or with arguments; what they mean is found without a store."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from celery_ratelimit import Concurrency, ConfigurationError, Limit
from celery_ratelimit.limiter.resolve_request import RequestResolver

QUOTAS: dict[str, Any] = {
    "stripe": Limit("10/s", burst=10),
    "tenant": Limit("5/s", burst=9, key="{tenant}", cost="n"),
    "node": Limit("1/s", per_worker=True),
    "reserve": Limit("10/s", burst=10, priority_reserve={5: 0.2}),
}
MINE = Limit("1/s", name="mine")
HERE = f"@{socket.gethostname()}"


@pytest.fixture
def resolver() -> RequestResolver:
    return RequestResolver(QUOTAS)


@pytest.mark.parametrize(
    ("name", "key", "force", "found"),
    [
        ("stripe", None, False, ("stripe", QUOTAS["stripe"])),
        ("stripe", "a", True, ("stripe", QUOTAS["stripe"])),
        ("stripe", "a", False, "limit 'stripe' is not kept by key, so there is no bucket 'a' of it"),
        ("stripe", 7, False, "limit 'stripe': key=7 must be a text"),
        ("tenant", "a", False, ("tenant", QUOTAS["tenant"])),
        ("node", "a", False, ("node", QUOTAS["node"])),
        ("gone", "a", False, ("gone", None)),
        ("", None, False, "name='' is no limit's"),
        (MINE, None, False, ("mine", MINE)),
        (Limit("1/s"), None, False, "has no name, so nothing can be stored for it"),
        (5, None, False, "5 is not a limit"),
    ],
)
def test_name_of_a_limit_and_its_code(resolver: RequestResolver, name: Any, key: Any, force: bool, found: Any) -> None:
    if isinstance(found, tuple):
        assert resolver.code(name, key, force=force) == found
    else:
        with pytest.raises(ConfigurationError, match=found):
            resolver.code(name, key, force=force)


@pytest.mark.parametrize(
    ("limits", "key", "template", "keys"),
    [
        (["stripe", "tenant"], None, None, [None, "{tenant}"]),
        (["stripe", "tenant"], None, "{a}", [None, "{a}"]),  # a single bucket stays one
        (["stripe", MINE], None, "{a}", [None, "{a}"]),  # other callers share the quota
        ("stripe", None, "{a}", "'stripe' is not kept by key, so there is no bucket '{a}'"),
        (["stripe", "tenant"], "7", None, [None, "{tenant}"]),
        ("stripe", "7", None, "'stripe' is not kept by key, so there is no bucket '7'"),
        ([], None, "{a}", []),
    ],
)
def test_template_of_a_function_is_the_key_of_its_keyed_limits(
    resolver: RequestResolver, limits: Any, key: Any, template: Any, keys: Any
) -> None:
    if isinstance(keys, list):
        assert [limit.key for limit in resolver.kept_by(limits, key, template)] == keys
    else:
        with pytest.raises(ConfigurationError, match=keys):
            resolver.kept_by(limits, key, template)


@pytest.mark.parametrize(
    ("limits", "key", "buckets"),
    [
        (["stripe", "node"], None, [("Limit", "stripe", ""), ("Limit", "node", HERE)]),
        (["tenant", "gone"], "a", [("Limit", "tenant", "a"), ("Limit", "gone", "a"), ("Concurrency", "gone", "a")]),
        ("stripe", "a", [("Limit", "stripe", "a"), ("Concurrency", "stripe", "a")]),  # it had keys, or was another kind
        (MINE, None, [("Limit", "mine", "")]),
    ],
)
def test_unknown_bucket_is_reset_by_force(resolver: RequestResolver, limits: Any, key: Any, buckets: Any) -> None:
    found = resolver.to_reset(limits, key, None, force=True)
    assert [(type(each.limit).__name__, each.name, each.key) for each in found] == buckets


@pytest.mark.parametrize(
    ("limits", "options", "error"),
    [
        ("stripe", {"args": {7: "a"}}, r"args=\{7: 'a'\} must be a mapping of names to values"),
        ("stripe", {"args": {"tenant": "a", 7: "b"}}, "must be a mapping of names to values"),
        ("stripe", {"args": ["tenant"]}, "must be a mapping of names to values"),
        *[("stripe", {"priority": each}, f"priority={each!r} must be a number") for each in (-1, 256, True, "5")],
        ("reserve", {"priority": 5}, "this limiter does not know which priorities go first"),
        ("tenant", {"key": 7, "cost": 1}, "limit 'tenant': key=7 must be a text"),
        ("text", {}, "quota 'text' is '5/s': add a Limit or a Concurrency"),
        (5, {}, "5 is not a limit"),
    ],
)
def test_invalid_request_error_names_the_value(
    resolver: RequestResolver, limits: Any, options: dict[str, Any], error: str
) -> None:
    resolver.quotas["text"] = "5/s"  # type: ignore[assignment]
    with pytest.raises(ConfigurationError, match=error):
        resolver.demands(limits, **{"key": None, "cost": None, **options})


def test_limit_of_a_task_is_found_by_its_name(resolver: RequestResolver) -> None:
    resolver.others = lambda: {"mine": MINE}
    assert resolver.code("mine", None, force=False) == ("mine", MINE)


def test_reset_needs_no_cost(resolver: RequestResolver) -> None:
    found = resolver.to_reset([MINE, Concurrency(5, name="gpu", cost="gpus")], None, None, force=False)
    assert [each.cost for each in found] == [1, 1]


def test_unknown_limit_error_suggests_a_known_one(resolver: RequestResolver) -> None:
    assert "Did you mean 'stripe'?" in str(resolver.unknown("strpe"))


def test_key_and_cost_come_from_the_call_or_from_the_arguments(resolver: RequestResolver) -> None:
    args = {"tenant": "ann", "n": 3}
    for key, cost, found in ((None, None, ("ann", 3)), ("bob", None, ("bob", 3)), (None, 5, ("ann", 5))):
        stripe, tenant = resolver.demands(["stripe", "tenant"], key, cost, args)
        assert (tenant.key, tenant.cost) == found
        assert (stripe.key, stripe.cost) == ("", cost or 1)


def test_call_without_a_priority_has_the_lowest_number(resolver: RequestResolver) -> None:
    for lowest_first, reserved in ((True, True), (False, False)):
        resolver.goes_by = lambda lowest_first=lowest_first: lowest_first  # type: ignore[misc]
        (none,) = resolver.demands("reserve", None, None)
        assert none == resolver.demands("reserve", None, None, priority=0)[0]
        assert none.passes is reserved
