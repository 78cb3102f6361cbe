"""A call without a key: an error, no limit, or one shared bucket."""

from __future__ import annotations

from typing import Any

import pytest

from celery_ratelimit import ConfigurationError, Limit
from celery_ratelimit.app.plan import make_plan
from celery_ratelimit.app.settings import settings_of
from celery_ratelimit.limiter.limit_request import LimitRequest
from celery_ratelimit.limits.any_limit import AnyLimit
from tests.unit.apps import make_app, plan_of, requests_of

TENANT = "tenant:{tenant_id}"


def work(order_id: int, tenant_id: str | None = None, **options: Any) -> None: ...


def by(missing_key: str | None, **options: Any) -> Limit:
    return Limit("1/s", name="tenant", key=TENANT, missing_key=missing_key, **options)


def test_key_of_none_error_names_the_options() -> None:
    plan = plan_of(work, limits=by(None))
    assert requests_of(plan, 1, "ann") == [("tenant", "tenant:ann", 1)]
    says = r"key='tenant:\{tenant_id\}' cannot be filled .*'tenant_id' is None; missing_key='exempt' and 'shared' allow"
    with pytest.raises(ConfigurationError, match=says):
        plan.demands((1,), {})


@pytest.mark.parametrize(
    ("missing_key", "requests"),
    [("exempt", [("calls", "", 1)]), ("shared", [("tenant", "(missing)", 1), ("calls", "", 1)])],
)
def test_requests_of_a_call_without_a_key(missing_key: str, requests: list[tuple[str, str, int]]) -> None:
    plan = plan_of(work, limits=[by(missing_key), Limit("9/s", name="calls")])
    assert requests_of(plan, 1) == requests
    assert requests_of(plan, 1, tenant_id=None) == requests
    for value in ("ann", 0, "", False):
        assert requests_of(plan, 1, value) == [("tenant", f"tenant:{value}", 1), ("calls", "", 1)]


@pytest.mark.parametrize("missing_key", ["exempt", "shared"])
def test_task_without_the_argument_has_a_missing_key(missing_key: str) -> None:
    def other(order_id: int) -> None: ...

    key = [("tenant", "(missing)", 1)] if missing_key == "shared" else []
    assert requests_of(plan_of(other, limits=by(missing_key)), 1) == key
    with pytest.raises(ConfigurationError, match="names the argument 'tenant_id', which the task does not take"):
        plan_of(other, limits=by("error"))
    with pytest.raises(ConfigurationError, match="names the argument 'weight', which the task does not take"):
        plan_of(other, limits=by(missing_key, burst=9, cost="weight"))


@pytest.mark.parametrize("key", ["{order[tenant]}", "{order.tenant.id}", lambda order: (order or {}).get("tenant")])
@pytest.mark.parametrize(("missing_key", "requests"), [("exempt", []), ("shared", [("tenant", "(missing)", 1)])])
def test_missing_part_or_none_is_a_missing_key(key: Any, missing_key: str, requests: list[Any]) -> None:
    def task(order: dict[str, Any]) -> None: ...

    plan = plan_of(task, limits=Limit("1/s", name="tenant", key=key, missing_key=missing_key))
    for order in ({}, {"tenant": None}, None):
        assert requests_of(plan, order) == requests
    if isinstance(key, str):
        with pytest.raises(ConfigurationError, match="has no attribute 'tenant'"):
            plan.demands((7,), {})  # a mistake, and not a missing key


def test_no_key_equals_the_shared_bucket() -> None:
    plan = plan_of(work, limits=Limit("1/s", name="tenant", key="{tenant_id}", missing_key="shared"))
    keys = {
        text: requests_of(plan, 1, text)[0][1]
        for text in ("(missing)", "(missing)#", "(missing)##", "(missing) x", "x")
    }
    shared = requests_of(plan, 1)[0][1]
    assert shared == "(missing)"
    assert shared not in keys.values()
    assert len(set(keys.values())) == len(keys)


def test_setting_applies_to_limits_without_missing_key() -> None:
    app = make_app(ratelimit_missing_key="exempt", ratelimit_quotas={"tenant": {"rate": "1/s", "key": TENANT}})
    assert requests_of(plan_of(work, app=app, limits="tenant"), 1) == []
    own = make_app(ratelimit_missing_key="exempt")
    assert requests_of(plan_of(work, app=own, limits=by("shared")), 1) == [("tenant", "(missing)", 1)]

    def other(order_id: int) -> None: ...

    assert requests_of(plan_of(other, app=make_app(ratelimit_missing_key="shared"), limits=by(None)), 1) != []
    with pytest.raises(ConfigurationError, match="ratelimit_missing_key='skip' is not one of 'error', 'exempt', 'sh"):
        plan_of(other, app=make_app(ratelimit_missing_key="skip"), limits="1/s")


def test_limits_that_differ_in_missing_key_share_a_bucket() -> None:
    limits: list[AnyLimit] = [by("exempt"), by("shared")]
    assert plan_of(work, limits=limits).demands((1, "ann"), {}) == (LimitRequest(limits[0], "tenant", "tenant:ann"),)


def test_celerys_own_task_in_a_limited_queue_has_no_key_and_runs() -> None:
    """Without a native chord (RabbitMQ's ``rpc://``, databases) ``celery.chord_unlock`` comes by the default queue."""
    app = make_app(ratelimit_queues={"celery": [by(None), Limit("9/s", name="calls")]})
    plan = make_plan(app.tasks["celery.chord_unlock"], "celery", settings_of(app))
    assert plan is not None
    assert [each.name for each in plan.demands(("group", "callback"), {})] == ["calls"]


@pytest.mark.parametrize("name", ["celery.chord_unlock", "celery.accumulate"])
@pytest.mark.parametrize(("given", "throttle"), [("retry",) * 2, ("wait",) * 2, ("drop", "retry"), ("fail", "retry")])
def test_celerys_own_task_on_which_others_depend_is_never_given_up(name: str, throttle: str, given: str) -> None:
    """Without it a chord, or a task that was replaced by a group, never ends."""
    app = make_app(ratelimit_queues={"celery": Limit("9/s", name="calls", max_parked=1)})
    app.conf.task_annotations = {"*": {"throttle": given, "max_wait": 1.0, "overflow": "drop"}}
    plan = make_plan(app.tasks[name], "celery", settings_of(app))
    assert plan is not None
    assert (plan.policy.throttle, plan.policy.max_wait, plan.policy.overflow) == (throttle, None, "celery")
