"""``priority_reserve=``: valid values, and the priorities that they mean on each broker."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import pytest
from celery import Celery

from celery_ratelimit import Concurrency, ConfigurationError, Limit, Limiter, RateLimitedTask
from celery_ratelimit.app.app_limits import limits_of_app
from celery_ratelimit.app.limiters import limiter_of
from celery_ratelimit.app.plan import plan_of

REDIS, RABBITMQ = "redis://localhost:1/0", "amqp://localhost:1//"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"priority_reserve": {}}, "must be a mapping of priorities to shares"),
        ({"priority_reserve": 0.2}, "must be a mapping of priorities to shares"),
        ({"priority_reserve": {"high": 0.2}}, "'high' is no priority"),
        ({"priority_reserve": {-1: 0.2}}, "-1 is no priority"),
        ({"priority_reserve": {256: 0.2}}, "256 is no priority"),
        ({"priority_reserve": {True: 0.2}}, "True is no priority"),
        (
            {"priority_reserve": {0: 0.2, "0": 0.1}},
            "'0' is no priority: take each number that messages are sent with once",
        ),
        ({"priority_reserve": {0: 0}}, "0 must be a share of the burst between 0 and 1"),
        ({"priority_reserve": {0: 1}}, "1 must be a share of the burst between 0 and 1"),
        ({"priority_reserve": {0: float("nan")}}, "must be a share of the burst"),
        ({"priority_reserve": {0: "0.2"}}, "must be a share of the burst"),
        ({"priority_reserve": {0: 1e-9}}, "is less than one permit"),
        ({"priority_reserve": {0: 0.09}}, "is less than one permit: give it burst= of 12 or more"),
        ({"priority_reserve": {0: 0.5, 3: 0.5}}, "leaves 0 of burst=10 .* too little for one permit"),
        ({"priority_reserve": {0: 0.5}, "cost": 6}, "leaves 5 of burst=10 .* too little for a call that costs 6"),
        ({"priority_reserve": {0: 0.5}, "debt": 1}, "exclude one another"),
        ({"priority_reserve": {0: 0.5}, "warmup": 1}, "exclude one another"),
        ({"priority_reserve": {0: 0.5}, "refill": "interval"}, "exclude one another"),
        ({"priority_reserve": {0: 0.5}, "burst": 1, "algorithm": "sliding_log"}, "is for algorithm='token_bucket'"),
        ({"priority_reserve": {0: 0.5}, "burst": 1}, "is less than one permit: give it burst= of 2 or more"),
    ],
)
def test_what_cannot_be_is_said(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Limit("10/s", **{"burst": 10, **options})


def test_priority_reserve_is_a_value() -> None:
    limit = Limit("10/s", burst=10, priority_reserve={3: 0.2, "0": 0.1})
    assert eval(repr(limit)) == limit == replace(limit, name=None) == pickle.loads(pickle.dumps(limit))
    assert hash(limit) == hash(eval(repr(limit)))
    assert limit != replace(limit, priority_reserve={0: 0.2}) != replace(limit, priority_reserve=None)


@pytest.mark.parametrize(
    ("priority", "on_redis", "on_rabbitmq"), [(0, 0, 5), (1, 2, 5), (3, 2, 5), (4, 5, 3), (7, 5, 0)]
)
def test_permits_left_by_a_priority(priority: int, on_redis: int, on_rabbitmq: int) -> None:
    redis, rabbitmq = (
        Limit("10/s", burst=10, priority_reserve={0: 0.2, 3: 0.3}),
        Limit("10/s", burst=10, priority_reserve={7: 0.3, 4: 0.2}),
    )
    assert redis.priority_reserve.left_by(priority, lowest_first=True) == on_redis * 100_000
    assert rabbitmq.priority_reserve.left_by(priority, lowest_first=False) == on_rabbitmq * 100_000


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
    ("broker", "leaves"), [(REDIS, {0: 0, 3: 0, 5: 200_000}), (RABBITMQ, {0: 200_000, 3: 0, 5: 0})]
)
def test_direction_of_priorities_follows_the_broker(broker: str, leaves: dict[int, int]) -> None:
    app = app_with(broker, priority_reserve={3: 0.2})
    plan = plan_of(app.tasks["task"], "celery")
    assert plan is not None
    limiter = limiter_of(app)
    for priority, share in leaves.items():
        (demand,) = plan.demands((), {}, priority)
        assert demand.leaves == share
        assert limiter._reader.demands("api", None, None, None, priority) == (demand,)
        assert demand.passes == (share == 0)
    buckets = {plan.buckets(plan.demands((), {}, priority)) for priority in leaves}
    assert len(buckets) == 2, "a line for each kind"


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


def test_two_limits_of_a_name_have_one_reserve() -> None:
    app = app_with(REDIS, priority_reserve={3: 0.2})

    @app.task(base=RateLimitedTask, limits=Limit("10/s", burst=10, name="api"), name="other", shared=False)
    def other() -> None: ...

    with pytest.raises(ConfigurationError, match="two different limits are called 'api'"):
        limits_of_app(app)


def test_concurrency_has_no_reserve() -> None:
    assert Concurrency(3).priority_reserve is None
