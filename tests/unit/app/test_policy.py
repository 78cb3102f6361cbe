"""The policy of a task: what becomes of it when it is throttled, and which calls coalesce."""

from __future__ import annotations

import math
from typing import Any

import pytest
from kombu import Queue

from celery_ratelimit import Concurrency, ConfigurationError, Limit, RateLimitedTask
from celery_ratelimit.app.options import alike_of
from celery_ratelimit.app.plan import make_plan
from celery_ratelimit.app.settings import settings_of
from tests.unit.apps import make_app, plan_of

LEAKY = Limit("1/s", algorithm="leaky_bucket", capacity=3)


def charge(order_id: int, tenant: str = "none", *, amount: int = 1) -> None: ...


@pytest.mark.parametrize(
    ("options", "policy"),
    [
        ({"limits": "10/s"}, ("retry", 0.02, None, "fail")),
        ({"limits": "100000/s"}, ("retry", 0.02, None, "fail")),
        ({"limits": ["1000/s", Concurrency(3)]}, ("retry", 0.02, None, "fail")),
        ({"limits": Concurrency(3)}, ("retry", 0.0, None, "fail")),
        ({"throttle": "wait", "inline_wait": 0, "max_wait": 60, "overflow": "drop"}, ("wait", 0.0, 60.0, "drop")),
    ],
)
def test_policy_of_a_task(options: dict[str, Any], policy: tuple[Any, ...]) -> None:
    made = plan_of(charge, **{"limits": "1/s", **options}).policy
    assert (made.throttle, made.inline_wait, made.max_wait, made.overflow) == policy
    assert type(made.inline_wait) is float
    assert made.max_wait is None or type(made.max_wait) is float


def test_option_of_a_task_without_limits_is_checked() -> None:
    app = make_app()
    task = app.task(name="shop.charge", base=RateLimitedTask, throttle="park", shared=False)(charge)
    with pytest.raises(ConfigurationError, match="throttle='park' is not one of"):
        make_plan(task, "celery", settings_of(app))


@pytest.mark.parametrize(
    ("broker", "queue", "throttle", "used"),
    [
        ("sqs://", "orders.fifo", "retry", "wait"),  # parked, its message would let the next one of its group run
        ("sqs://", "orders.fifo", "drop", "drop"),
        ("sqs://", "orders", "retry", "retry"),
        ("redis://nowhere", "orders.fifo", "retry", "retry"),
    ],
)
def test_task_of_a_fifo_queue_waits_in_it(broker: str, queue: str, throttle: str, used: str) -> None:
    app = make_app(broker, ratelimit_url="redis://nowhere")
    assert plan_of(charge, app=app, queue=queue, limits="1/s", throttle=throttle).policy.throttle == used


def test_overflow_queue_exists_where_celery_makes_none() -> None:
    app = make_app(task_create_missing_queues=False, task_queues=[Queue("later"), Queue("failed")])
    for overflow in ("later", "failed", "drop"):
        assert plan_of(charge, app=app, name=overflow, limits="1/s", overflow=overflow).policy.overflow == overflow
    with pytest.raises(ConfigurationError, match="overflow='other' is not in task_queues"):
        plan_of(charge, app=app, limits="1/s", overflow="other")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        *[({"throttle": value}, f"throttle={value!r}.*'retry', 'wait', 'drop', 'fail'") for value in ("park", None)],
        *[
            ({"overflow": value}, f"overflow={value!r}.*'fail' nor 'drop' nor the name of a queue")
            for value in ("retry", "fial", "", 5)
        ],
        *[({"inline_wait": value}, f"inline_wait={value!r}.*a number of sec") for value in (-1, "1", True, math.nan)],
        *[({"max_wait": value}, f"max_wait={value!r}.*a number of seconds") for value in (-0.1, 1e9, "60")],
        *[({"coalesce": value}, f"coalesce={value!r} is not one of 'newest', 'oldest'") for value in ("latest", True)],
        ({"throttle": "wait", "limits": Limit("1/s", fair="{tenant}")}, "fair='{tenant}' of limit .* would do nothing"),
        ({"coalesce_key": "{order_id}"}, "coalesce_key='{order_id}' .*coalesce"),
        ({"coalesce": "newest", "throttle": "wait"}, "throttle='wait' leaves the backlog in the broker"),
        ({"coalesce": "newest", "throttle": "drop"}, "throttle='drop' lets no task wait"),
        ({"coalesce": "newest", "throttle": "fail"}, "throttle='fail' lets no task wait"),
        ({"coalesce": "newest", "coalesce_key": "{ordre_id}"}, "names the argument 'ordre_id', .*order_id, tenant"),
        ({"coalesce": "newest", "coalesce_key": "{"}, "coalesce_key='{' is not a template"),
        ({"coalesce": "newest", "coalesce_key": "{0}"}, "must name the task's arguments"),
        ({"coalesce": "newest", "coalesce_key": 7}, "coalesce_key=7 must be a template"),
        (
            {"coalesce": "newest", "limits": LEAKY},
            "a leaky bucket with a capacity is a queue by itself",
        ),
    ],
)
def test_invalid_option_error_names_task_and_value(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"task 'shop\.charge'.*{message}"):
        plan_of(charge, **{"limits": "1/s", **options})


def test_task_coalesces_by_its_option_alone() -> None:
    plan = plan_of(charge, limits="1/s", coalesce="oldest")
    assert plan.policy.coalesce == "oldest"
    assert plan.waiting.alone("sync", (1,), {}) == "", "while the store is full, none is parked"
    assert plan_of(charge, limits="1/s").alone("sync", (1,), {}) == ""


def test_without_a_key_equal_arguments_coalesce() -> None:
    plan = plan_of(charge, limits="1/s", coalesce="newest")
    alone = plan.alone("sync", (1,), {})
    assert alone[0] == "n"
    assert len(alone) == 33
    assert plan.alone("sync", (), {"order_id": 1, "tenant": "none"}) == alone
    others = [((2,), {}), ((1, "new"), {}), ((1,), {"amount": 2}), (("1",), {})]
    assert len({plan.alone("sync", args, kwargs) for args, kwargs in others} | {alone}) == 5
    assert plan.alone("another", (1,), {}) != alone, "of a name"


class Keys:
    def of(self, order_id: int, tenant: str = "", amount: int = 1) -> int:
        return order_id


@pytest.mark.parametrize("key", ["{order_id}", lambda order_id, tenant="", amount=1: order_id, Keys().of])
def test_coalesce_key_selects_the_arguments(key: Any) -> None:
    plan = plan_of(charge, limits="1/s", coalesce="oldest", coalesce_key=key)
    assert plan.alone("sync", (1, "a"), {}) == plan.alone("sync", (1,), {"amount": 2}) != plan.alone("sync", (2,), {})


def test_without_a_signature_arguments_coalesce_as_they_are_passed() -> None:
    calls = [((1,), {}), ((2,), {}), ((), {"n": 1})]
    assert len({alike_of("sync", None, None, args, kwargs) for args, kwargs in calls}) == 3


def test_unfillable_coalesce_key_error_names_the_task() -> None:
    plan = plan_of(charge, limits="1/s", coalesce="oldest", coalesce_key="{order_id.id}")
    with pytest.raises(ConfigurationError, match=r"task 'sync': coalesce_key=.* cannot be filled"):
        plan.alone("sync", (1,), {})
