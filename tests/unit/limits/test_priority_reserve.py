"""``priority_reserve=``: valid values, and the priorities that they mean on each broker."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery

from celery_ratelimit import ConfigurationError, Limit, Limiter, RateLimitedTask
from celery_ratelimit.app.app_limits import limits_of_app
from celery_ratelimit.app.limiters import limiter_of
from celery_ratelimit.app.plan import plan_of

REDIS, RABBITMQ = "redis://localhost:1/0", "amqp://localhost:1//"


def app_with(broker: str, **options: Any) -> Any:
    app = Celery("reserving", broker=broker, set_as_current=False)
    app.conf.ratelimit_url = REDIS
    app.conf.ratelimit_quotas = {"api": {"rate": "10/s", "burst": 10, **options}}

    @app.task(base=RateLimitedTask, limits="api", name="task", shared=False)
    def task() -> None: ...

    return app


@pytest.mark.parametrize(
    ("broker", "priority", "message"), [(REDIS, 9, "0 is the highest priority"), (RABBITMQ, 0, "the highest number")]
)
def test_reserve_for_the_lowest_priority_is_an_error(broker: str, priority: int, message: str) -> None:
    app = app_with(broker, priority_reserve={priority: 0.2})
    with pytest.raises(
        ConfigurationError, match=f"task 'task': priority_reserve=.*every message has priority {priority}.*{message}"
    ):
        limits_of_app(app)


@pytest.mark.parametrize(
    ("broker", "reserve", "leaves"),
    [
        (REDIS, {0: 0.2, 3: 0.3}, {0: 0, 1: 200_000, 3: 200_000, 4: 500_000, 7: 500_000}),
        (RABBITMQ, {7: 0.3, 4: 0.2}, {0: 500_000, 3: 500_000, 4: 300_000, 7: 0}),
    ],
)
def test_call_leaves_permits_to_higher_priorities_of_its_broker(
    broker: str, reserve: dict[int, float], leaves: dict[int, int]
) -> None:
    app = app_with(broker, priority_reserve=reserve)
    plan = plan_of(app.tasks["task"], "celery")
    assert plan is not None
    limiter = limiter_of(app)
    for priority, share in leaves.items():
        (demand,) = plan.demands((), {}, priority)
        assert demand.leaves == share
        assert limiter._reader.demands("api", None, None, None, priority) == (demand,)
        assert demand.passes == (share < 500_000)
    buckets = {plan.buckets(plan.demands((), {}, priority)) for priority in leaves}
    assert len(buckets) == len(set(leaves.values())), "a line for each number of permits left"


def test_limiter_without_a_broker_needs_lowest_first() -> None:
    limit = Limit("10/s", burst=10, name="api", priority_reserve={3: 0.2})
    with pytest.raises(ConfigurationError, match=r"Limiter.from_app\(app\), or say it: lowest_first=True"):
        Limiter.from_url(REDIS).acquire(limit, priority=3)
    limiter = Limiter.from_url(REDIS, lowest_first=False, quotas={"api": limit, "plain": "10/s"})
    for priority in (-1, 256, True, "3", 1.0):
        with pytest.raises(ConfigurationError, match="must be a number from 0 to 255"):
            limiter.acquire(["plain", "api"], priority=priority)  # type: ignore[arg-type]
    assert [each.leaves for each in limiter._reader.demands(["plain", "api"], None, None, None, 1)] == [None, 200_000]


def test_stored_rate_omits_the_reserve() -> None:
    """Older workers read it."""
    code = Limit("10/s", burst=10, name="api", priority_reserve={3: 0.2})
    limiter = Limiter.from_url(REDIS)
    ((_, call),) = next(limiter._asker.core.settings.set_rate("api", code, "20/s", key=None))  # type: ignore[misc]
    assert b"\r\n$2\r\n10\r\n$1\r\n0\r\n" in b"".join(call[-1]), "its size, and no debt"
    assert b"reserve" not in b"".join(call[-1])
