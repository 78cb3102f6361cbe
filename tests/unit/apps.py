"""The way in which unit tests make an app, and the plan of a task."""

from __future__ import annotations

from typing import Any

from celery import Celery

from celery_ratelimit.app.plan import Plan, make_plan
from celery_ratelimit.app.settings import settings_of

__all__ = ["make_app", "plan_of", "requests_of"]


def make_app(broker: Any = "redis://nowhere", backend: Any = None, **conf: Any) -> Celery:
    """Make an app that is not the current one, with these settings."""
    app = Celery("test", broker=broker, backend=backend, set_as_current=False)
    app.conf.update(conf)
    return app


def plan_of(
    function: Any, *, app: Celery | None = None, name: str = "shop.charge", queue: str = "celery", **options: Any
) -> Plan:
    """Make a task of ``function`` with these options; return its plan for messages of ``queue``."""
    app = app or make_app()
    task = app.task(name=name, shared=False, **options)(function)
    plan = make_plan(getattr(task, "_get_current_object", lambda: task)(), queue, settings_of(app))
    assert plan is not None
    return plan


def requests_of(plan: Plan, *args: Any, **kwargs: Any) -> list[tuple[str, str, int]]:
    """Return (limit, key, cost) of each request of a call with these arguments."""
    return [(demand.name, demand.key, demand.cost) for demand in plan.demands(args, kwargs)]
