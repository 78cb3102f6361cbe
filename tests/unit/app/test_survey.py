"""Limits that look forgotten are refused or reported, and the banner shows all limits."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
from celery import Celery, Task
from celery.signals import worker_init
from celery_heimdall import HeimdallTask
from celery_once import QueueOnce
from celery_singleton import Singleton
from kombu import Queue

from celery_ratelimit import Concurrency, ConfigurationError, Limit, Limiter, RateLimitedMixin, RateLimitedTask
from celery_ratelimit.app.app_limits import limits_of_app
from celery_ratelimit.app.options import misspelt_options
from celery_ratelimit.app.settings import has_limits, settings_of
from celery_ratelimit.app.survey import forgotten, limits_shown
from celery_ratelimit.worker.bootstep import GateStep
from tests.unit.apps import make_app


def task_of(app: Celery, name: str = "shop.charge", **options: Any) -> None:
    @app.task(name=name, **options)
    def charge(order_id: int) -> None: ...


def report_of(app: Celery) -> str:
    limits_of_app(app)
    return "\n".join(forgotten(app))


# -- Refused -----------------------------------------------------------------------------------------------------------

LIMITED: dict[str, Any] = {"base": RateLimitedTask, "limits": "5/s"}


@pytest.mark.parametrize(
    ("conf", "options", "message"),
    [
        ({}, {"base": RateLimitedTask, "limit": "5/s"}, r"task 'shop.charge'.*limit='5/s'.*did you mean limits=\?"),
        ({}, {"base": RateLimitedTask, "limits": []}, r"task 'shop.charge'.*\[\] names no limit"),
        ({"ratelimit_tasks": {"shop.*": []}}, {}, r"ratelimit_tasks\['shop.\*'\].*\[\] names no limit"),
        ({"ratelimit_queues": {"q": ()}}, {}, r"ratelimit_queues\['q'\].*\(\) names no limit"),
        ({"ratelimit_quotas": {"gpu": {"limit": 4, "name": "cpu"}}}, {}, r"quotas\['gpu'\].*name='cpu'.*'gpu'"),
        (
            {"ratelimit_queues": {"emails": "1/s"}, "task_annotations": {"shop.charge": {"throttle": "wiat"}}},
            {"base": RateLimitedTask},
            "task 'shop.charge'.*throttle='wiat'.*'wait'",
        ),
        (
            {"ratelimit_queues": {"emails": "1/s"}, "task_annotations": {"shop.charge": {"max_wait": "60"}}},
            {},
            "task 'shop.charge'.*max_wait='60'",
        ),
        (
            {"task_create_missing_queues": False, "task_queues": [Queue("celery")]},
            {**LIMITED, "overflow": "later"},
            "task 'shop.charge'.*overflow='later'.*task_queues",
        ),
    ],
)
def test_meaningless_option_is_refused(conf: dict[str, Any], options: Any, message: str) -> None:
    app = make_app(**conf)
    task_of(app, **options)
    with pytest.raises(ConfigurationError, match=message):
        limits_of_app(app)


def test_nearest_option_is_suggested_for_an_attribute_and_none_for_a_method() -> None:
    app = make_app()
    task_of(app, base=RateLimitedTask, coalesce_kye="{order_id}", limit=lambda self: "5/s")
    assert misspelt_options(app.tasks["shop.charge"]) == {"coalesce_kye": "coalesce_key"}


def test_quota_has_no_other_name_than_its_own() -> None:
    stripe = Limit("1/s", name="stripe")
    assert settings_of(make_app(ratelimit_quotas={"stripe": stripe})).quotas == {"stripe": stripe}
    for made in (lambda **quotas: Limiter.from_url("redis://nowhere", quotas=quotas), quotas_of_app):
        assert made(stripe=Limit("1/s")).quotas["stripe"].rate == "1/s"
        with pytest.raises(ConfigurationError, match=r"quotas\['stripe'\]: Limit\('1/s', name='strip'\) has another"):
            made(stripe=Limit("1/s", name="strip"))


def quotas_of_app(**quotas: Any) -> Any:
    return settings_of(make_app(ratelimit_quotas=quotas))


@pytest.mark.parametrize(
    "change",
    [{"burst": 9}, {"weights": {"gold": 4}}, {"max_parked": 3}, {"priority_reserve": {3: 0.2}}, {"shadow": True}],
)
def test_two_different_limits_of_one_name_are_refused(change: dict[str, Any]) -> None:
    app = make_app()
    limit = Limit("10/s", burst=10, name="stripe", fair="{order_id}")
    task_of(app, base=RateLimitedTask, limits=limit)
    task_of(app, "shop.same", base=RateLimitedTask, limits=replace(limit, fair="customer {order_id}"))
    assert limits_of_app(app)["stripe"].wire(1) == limit.wire(1)
    task_of(app, "shop.other", base=RateLimitedTask, limits=replace(limit, **change))
    with pytest.raises(ConfigurationError, match="two different limits are called 'stripe'"):
        limits_of_app(app)


# -- Said --------------------------------------------------------------------------------------------------------------

BOUNDED = Limit("10/s", name="r1", max_parked=3)
LEAKY = Limit("1/s", name="leaky", algorithm="leaky_bucket", capacity=3)


@pytest.mark.parametrize(
    ("conf", "options", "message"),
    [
        ({"ratelimit_tasks": {"shop.charges": "1/s"}}, {}, "'shop.charges'.*matches none.*did you mean 'shop.charge'"),
        ({"ratelimit_tasks": {"billing.*": "1/s"}}, {}, r"ratelimit_tasks\['billing.\*'\].*matches none"),
        ({}, {"limits": "5/s"}, "task 'shop.charge'.*limits='5/s'.*base=RateLimitedTask"),
        ({}, {"limit": "5/s"}, "task 'shop.charge'.*limit='5/s'.*means nothing"),
        ({}, {"limit": Limit("5/s")}, r"task 'shop.charge'.*limit=Limit\('5/s'\).*means nothing"),
        ({}, {**LIMITED, "rate_limit": "10/s"}, "task 'shop.charge'.*rate_limit='10/s'.*both hold"),
        ({}, {**LIMITED, "throtle": "drop"}, "task 'shop.charge'.*throtle='drop'.*did you mean throttle="),
        (
            {"task_queues": [Queue("celery"), Queue("later")]},
            {**LIMITED, "overflow": "latre"},
            "task 'shop.charge'.*overflow='latre'.*did you mean 'later'",
        ),
        (
            {"task_queues": [Queue("celery"), Queue("emails")], "ratelimit_queues": {"email": "1/s"}},
            {},
            r"ratelimit_queues\['email'\].*did you mean 'emails'",
        ),
        *[
            (
                {},
                {"base": RateLimitedTask, "limits": limits, "throttle": throttle},
                "task 'shop.charge': max_parked=3 of limit 'r1' does not bound it",
            )
            for limits, throttle in ((BOUNDED, "wait"), ([BOUNDED, LEAKY], "retry"))
        ],
    ],
)
def test_forgotten_limit_is_reported_in_one_line(conf: dict[str, Any], options: Any, message: str) -> None:
    app = make_app(**conf)
    task_of(app, **options)
    text = report_of(app)
    assert "\n" not in text
    assert re.search(message, text), text


def test_a_queue_that_other_workers_consume_is_in_order() -> None:
    app = make_app()
    task_of(app, **LIMITED, overflow="later")
    assert "overflow='later'" in report_of(app)
    assert forgotten(app, {"later"}) == []


class Gathered(Task):
    """As celery-batches makes them: its requests go to the pool by a way of their own."""

    def Strategy(self, task: Any, app: Any, consumer: Any) -> Any: ...


@pytest.mark.parametrize(
    ("conf", "options", "is_limited"),
    [
        ({"ratelimit_tasks": {"shop.*": "2/s"}}, {}, True),
        ({"ratelimit_queues": {"emails": "2/s"}}, {}, True),
        ({}, {"limits": "2/s"}, True),
        ({}, {"limits": "2/s", "base": type("Both", (RateLimitedMixin, Gathered), {})}, True),
        ({}, {}, False),
    ],
)
def test_limited_task_with_its_own_strategy_is_reported(conf: Any, options: dict[str, Any], is_limited: bool) -> None:
    app = make_app(**conf)
    task_of(app, **{"base": Gathered, **options})
    said = "task 'shop.charge' has a Strategy of its own (Gathered.Strategy), so its requests pass by the"
    text = report_of(app)
    assert said in text if is_limited else text == ""


@pytest.mark.parametrize(
    ("base", "options", "package"),
    [
        (Singleton, {}, "celery_singleton"),
        (QueueOnce, {}, "celery_once"),
        (HeimdallTask, {"heimdall": {"unique": True}}, "celery_heimdall"),
        (HeimdallTask, {"heimdall": {"times": 1, "per": 2}}, None),
    ],
)
def test_lock_without_a_releasing_hook_is_reported(base: Any, options: dict[str, Any], package: str | None) -> None:
    app = make_app()
    limited = type("Both", (RateLimitedMixin, base), {})
    task_of(app, base=limited, limits="1/s", **options)
    task_of(app, "shop.hooked", base=limited, limits="1/s", on_throttled_out=lambda *call: None, **options)
    text = report_of(app)
    assert text.count("has a lock of") == (package is not None)
    assert package is None or f"task 'shop.charge' has a lock of {package}, which stays" in text


def test_valid_app_has_no_report() -> None:
    app = make_app(
        ratelimit_quotas={"stripe": "100/s"},
        ratelimit_tasks={"shop.*": "stripe", "celery.chord_unlock": "1/s"},
        ratelimit_queues={"emails": "1/s"},
        task_queues=[Queue("celery"), Queue("emails"), Queue("later")],
        task_annotations={"shop.charge": {"throttle": "wait"}},
    )
    task_of(app, **LIMITED, overflow="later", max_wait=5, page_limit=50)
    task_of(app, "shop.list", limit=50)
    for throttle in ("retry", "drop"):
        task_of(app, f"shop.{throttle}", base=RateLimitedTask, limits=BOUNDED, throttle=throttle)
    assert report_of(app) == ""


# -- Shown -------------------------------------------------------------------------------------------------------------


def test_each_limit_is_shown_with_what_it_is_for() -> None:
    app = make_app(
        ratelimit_quotas={"stripe": {"rate": "100/s", "burst": 5, "max_parked": 9}, "unused": "1/s"},
        ratelimit_tasks={"shop.*": "stripe"},
        ratelimit_queues={"emails": ["stripe", "14/s"]},
    )
    task_of(app, base=RateLimitedTask, limits=[Limit("5/s", key="order:{order_id}"), Concurrency(3, name="places")])
    task_of(app, "shop.refund")
    assert limits_shown(app) == [
        "emails: 14/s (queue emails)",
        "places: 3 at once (task shop.charge)",
        "shop.charge: 5/s, by 'order:{order_id}' (task shop.charge)",
        "stripe: 100/s, burst 5, at most 9 parked (tasks shop.charge, shop.refund; queue emails)",
    ]
    for number in range(20):
        task_of(app, f"shop.a{number:02}")
    assert "shop.a07 and 14 more; queue emails)" in "".join(limits_shown(app))


# -- Settings alone ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("conf", "options", "expected"),
    [
        ({}, {}, False),
        ({"ratelimit_tasks": {"shop.*": "1/s"}}, {}, True),
        ({"ratelimit_queues": {"emails": "1/s"}}, {}, True),
        ({"ratelimit_quees": {"emails": "1/s"}}, {}, True),
        ({"RATELIMIT_ENABLE": False}, {}, False),
        ({}, {"limits": "1/s"}, True),
    ],
)
def test_a_worker_has_the_gate_if_anything_is_limited(conf: dict[str, Any], options: Any, expected: bool) -> None:
    app = make_app(**conf)
    task_of(app, **options)
    assert has_limits(app) == expected
    worker_init.send(sender=type("Worker", (), {"app": app})())
    assert (GateStep in app.steps["consumer"]) == expected


def test_package_does_not_import_celery() -> None:
    code = "import celery_ratelimit, sys; assert 'celery' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.parametrize("key", ["{ordre_id}", "{order_id}:{tenant.id}"])
@pytest.mark.parametrize("option", [{"missing_key": "exempt"}, {}], ids=["by option", "by setting"])
def test_always_exempt_limit_is_reported(option: dict[str, Any], key: str) -> None:
    """A typing error, which no call would show. Limits by a pattern are for tasks that have the argument."""
    limit = Limit("1/s", key=key, **option)
    app = make_app(ratelimit_quotas={"tenant": limit}, ratelimit_tasks={"other.*": limit})
    app.conf.ratelimit_missing_key = "error" if option else "exempt"
    task_of(app, base=RateLimitedTask, limits=["tenant", Limit("5/s", key="{order_id}", missing_key="exempt")])
    task_of(app, name="other.charge")
    (line,) = report_of(app).splitlines()
    assert "task 'shop.charge': key=" in line
    assert line.endswith("(arguments: order_id): with missing_key='exempt' it never limits this task")
