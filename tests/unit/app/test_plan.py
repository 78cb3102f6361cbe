"""The plan of a task: its limits, and the requests of a call."""

from __future__ import annotations

import math
import socket
from typing import Any

import pytest

from celery_ratelimit import Concurrency, ConfigurationError, ImpossibleRequest, Limit
from celery_ratelimit.app.plan import Plan, is_meant, make_plan, node_of
from celery_ratelimit.app.settings import settings_of
from tests.unit.apps import make_app, plan_of, requests_of


def charge(order_id: int, tenant: str = "none", *, amount: int = 1) -> None: ...


# -- Keys and costs ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "kwargs", "key"),
    [
        ((7, "ann"), {}, "ann:7"),
        ((7,), {"tenant": "ann"}, "ann:7"),
        ((), {"order_id": 7, "tenant": "ann"}, "ann:7"),
        ((7,), {}, "none:7"),
    ],
)
def test_template_is_filled_by_name(args: tuple[Any, ...], kwargs: dict[str, Any], key: str) -> None:
    plan = plan_of(charge, limits=Limit("1/s", key="{tenant}:{order_id}"))
    assert requests_of(plan, *args, **kwargs) == [("shop.charge", key, 1)]


def test_a_bound_task_does_not_count_self() -> None:
    def task(self: Any, tenant: str, n: int = 2) -> None: ...

    limit = Limit("1/s", burst=9, key="{tenant}", cost="n")
    for options in ({}, {"autoretry_for": (OSError,)}):
        assert requests_of(plan_of(task, bind=True, limits=limit, **options), "ann") == [("shop.charge", "ann", 2)]
    with pytest.raises(ConfigurationError, match="'self'"):
        plan_of(task, bind=True, limits=Limit("1/s", key="{self}"))


def test_keyword_arguments_without_a_name_in_the_signature() -> None:
    def task(order_id: int, **options: Any) -> None: ...

    plan = plan_of(task, limits=Limit("1/s", burst=9, key="{tenant}", cost="weight"))
    assert requests_of(plan, 7, tenant="ann", weight=3) == [("shop.charge", "ann", 3)]
    with pytest.raises(ConfigurationError, match=r"key='\{tenant\}' cannot be filled from the arguments order_id"):
        plan.demands((7,), {"weight": 3})
    with pytest.raises(ConfigurationError, match="cost='weight' is not among the arguments order_id, tenant"):
        plan.demands((7,), {"tenant": "ann"})


def test_callables_get_the_arguments_of_the_call() -> None:
    seen: list[Any] = []

    def key(*args: Any, **kwargs: Any) -> int:
        seen.append((args, kwargs))
        return 42

    def cost(order_id: int, tenant: str = "none", *, amount: int = 1) -> int:
        return amount * 2

    plan = plan_of(charge, limits=Limit("1/s", burst=10, key=key, cost=cost))  # type: ignore[arg-type]
    assert requests_of(plan, 7, tenant="ann", amount=3) == [("shop.charge", "42", 6)]
    assert seen == [((7,), {"tenant": "ann", "amount": 3})]


def test_error_of_a_callable_or_of_a_wrong_call_reaches_the_caller() -> None:
    def broken(*args: Any, **kwargs: Any) -> str:
        raise LookupError("no such tenant")

    for limit in (Limit("1/s", key=broken), Limit("1/s", burst=9, cost=broken)):  # type: ignore[arg-type]
        with pytest.raises(LookupError, match="no such tenant"):
            plan_of(charge, limits=limit).demands((7,), {})
    with pytest.raises(TypeError, match="order_id"):
        plan_of(charge, limits=Limit("1/s", key="{tenant}")).demands((), {})


def test_the_cost_may_be_an_argument() -> None:
    plan = plan_of(charge, limits=Limit("200000/m", burst=1000, cost="amount"))
    assert requests_of(plan, 7, amount=250) == [("shop.charge", "", 250)]
    assert requests_of(plan, 7) == [("shop.charge", "", 1)]
    with pytest.raises(ImpossibleRequest) as caught:
        plan.demands((7,), {"amount": 1001})
    assert (caught.value.limit, caught.value.cost, caught.value.capacity) == ("shop.charge", 1001, 1000)


@pytest.mark.parametrize("amount", [0, -1, 1.5, "7", None, True, math.nan, math.inf])
def test_invalid_cost_error_names_it(amount: Any) -> None:
    plan = plan_of(charge, limits=Limit("1/s", burst=10, cost="amount"))
    with pytest.raises(ConfigurationError, match=rf"limit 'shop\.charge'.*cost={amount!r} .*multiply all numbers"):
        plan.demands((7,), {"amount": amount})


def test_without_keys_and_computed_costs_the_arguments_are_not_looked_at() -> None:
    plan = plan_of(charge, limits=["1/s", Limit("5/m", burst=5, name="other", cost=3)])
    assert plan.demands((), {}) is plan.demands(("any", "number", "of"), {"unknown": 1})
    assert requests_of(plan) == [("shop.charge", "", 1), ("other", "", 3)]


@pytest.mark.parametrize(
    ("limit", "message"),
    [
        (Limit("1/s", key="{tenant_id}"), r"key='\{tenant_id\}'.*'tenant_id'.*order_id, tenant, amount"),
        (Limit("1/s", key="{tenant}:{x.y}"), "'x'.*order_id, tenant, amount"),
        (Limit("1/s", key="{x}", fair="{weight}", missing_key="exempt"), r"fair='\{weight\}'.*'weight'"),
        (Limit("1/s", burst=9, cost="weight"), "cost='weight'.*'weight'.*order_id, tenant, amount"),
        (Limit("1/s", key="order_id"), r"key='order_id' .*the same for every call.*key='\{order_id\}'"),
        (Limit("1/s", key="{{braces}}"), r"key='\{tenant_id\}'"),
    ],
)
def test_missing_argument_or_constant_key_is_found_when_the_plan_is_made(limit: Limit, message: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"task 'shop\.charge'.*{message}"):
        plan_of(charge, limits=limit)


# -- Which limits ------------------------------------------------------------------------------------------------------


def names(plan: Plan | None) -> list[tuple[str | None, str]]:
    return [] if plan is None else [(limit.name, limit.rate) for limit in plan.limits]


def test_a_task_that_nothing_limits_has_no_plan() -> None:
    app = make_app(ratelimit_tasks={"other.*": "1/s"}, ratelimit_queues={"emails": "1/s"})
    task = app.task(name="shop.charge")(charge)
    assert make_plan(task, "celery", settings_of(app)) is None


def test_rates_without_names_have_a_bucket_each() -> None:
    assert names(plan_of(charge, limits=("1/s", Limit("9/m", name="mine"), "100/h"))) == [
        ("shop.charge", "1/s"),
        ("mine", "9/m"),
        ("shop.charge#2", "100/h"),
    ]


def test_own_limits_then_patterns_then_the_queue() -> None:
    app = make_app(
        ratelimit_quotas={"stripe": "100/s"},
        ratelimit_tasks={"shop.*": "stripe", "*.charge": ["7/m"], "other": "1/d", "Shop.*": "2/d"},
        ratelimit_queues={"emails": "14/s", "celery": "1/s"},
    )
    task = app.task(name="shop.charge", limits="10/s")(charge)
    plan = make_plan(task, "emails", settings_of(app))
    assert names(plan) == [("shop.charge", "10/s"), ("stripe", "100/s"), ("shop.charge#2", "7/m"), ("emails", "14/s")]


@pytest.mark.parametrize(
    ("pattern", "name", "means"),
    [
        ("shop.*", "shop.charge", True),
        ("shop.*", "mail.send", False),
        ("*", "celery.chord_unlock", False),  # Celery's own tasks are limited by name only
        ("celery.chord_unlock", "celery.chord_unlock", True),
        ("shop.[ab]", "shop.[ab]", True),
    ],
)
def test_pattern_means_tasks_by_name(pattern: str, name: str, means: bool) -> None:
    assert is_meant(pattern, name) is means


def test_tasks_of_one_pattern_have_buckets_of_their_own_and_share_quotas_and_queues() -> None:
    app = make_app(
        ratelimit_quotas={"stripe": "100/s"},
        ratelimit_tasks={"shop.*": ["5/s", "stripe", "stripe"]},
        ratelimit_queues={"emails": ["14/s", "stripe"]},
    )
    for name in ("shop.a", "shop.b"):
        plan = plan_of(charge, app=app, name=name, queue="emails", limits=["stripe", "stripe"])
        assert requests_of(plan) == [("stripe", "", 1), (name, "", 1), ("emails", "", 1)], "stripe is paid once"


def test_the_same_limit_by_key_is_paid_once_a_key() -> None:
    tenant, order = Limit("1/s", name="api", key="{tenant}"), Limit("1/s", name="api", key="{order_id}")
    plan = plan_of(charge, limits=[tenant, order])
    assert requests_of(plan, 7, "ann") == [("api", "ann", 1), ("api", "7", 1)]
    assert requests_of(plan, 7, "7") == [("api", "7", 1)]


def test_node_of_a_worker_is_its_name() -> None:
    assert node_of(make_app(), "one@host") == "one@host"


def test_mappings_describe_limits() -> None:
    limits = [{"rate": "5/s", "burst": 3, "key": "{tenant}"}, {"limit": 5, "lease": 10}, "1/s", Concurrency(2)]
    assert plan_of(charge, limits=limits).limits == (
        Limit("5/s", burst=3, key="{tenant}", name="shop.charge"),
        Concurrency(5, lease=10, name="shop.charge#2"),
        Limit("1/s", name="shop.charge#3"),
        Concurrency(2, name="shop.charge#4"),
    )


@pytest.mark.parametrize(
    ("limits", "part"),
    [
        ("100/ms", "'100/ms'"),
        ("strpe", "did you mean 'stripe'?"),
        (5, "5 is not a limit"),
        ([None], "None is not a limit"),
        ({"rate": "1/s", "bursts": 2}, "bursts"),
        ({"limit": 5, "leese": 10}, "'leese'"),
        ("", "''"),
    ],
)
def test_invalid_limits_error_names_the_task(limits: Any, part: str) -> None:
    with pytest.raises(ConfigurationError, match=r"task 'shop\.charge'") as caught:
        plan_of(charge, app=make_app(ratelimit_quotas={"stripe": "1/s"}), limits=limits)
    assert part in str(caught.value)


@pytest.mark.parametrize(
    ("limits", "throttle", "matters"),
    [
        ("1/s", "retry", {"parks"}),
        ("1/s", "wait", set()),
        (["1/s", Concurrency(2)], "retry", {"parks", "leased"}),
        ([Limit("1/s", breaker=True), "9/m"], "retry", {"parks", "has_breaker"}),
        ([Limit("10/s", burst=10, priority_reserve={0: 0.2}), "9/m"], "retry", {"parks", "reserves"}),
        (Limit("1/s", algorithm="leaky_bucket"), "retry", {"parks"}),
        (Limit("1/s", algorithm="leaky_bucket", capacity=3), "retry", set()),
    ],
)
def test_what_matters_for_the_limits_of_a_plan(limits: Any, throttle: str, matters: set[str]) -> None:
    plan = plan_of(charge, limits=limits, throttle=throttle)
    assert {name for name in ("parks", "leased", "has_breaker", "reserves") if getattr(plan, name)} == matters
    assert plan.longest_pause == (0.25 if "leased" in matters else math.inf)
    buckets = [plan.buckets(plan.demands((7,), {}, priority)) for priority in (0, 9)]
    assert buckets[0][0] == ("shop.charge", "")
    assert buckets[0] == plan.buckets(plan.demands((7,), {}))
    assert plan.node == socket.gethostname()
    assert (buckets[0] != buckets[1]) is ("reserves" in matters), "requests that may use a reserve have their own queue"
