"""Refusals of an upstream, and the breaker of a task's limit."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from celery.exceptions import Ignore

from celery_ratelimit import Breaker, ConfigurationError, Limit, Limiter, RateLimitedTask, UpstreamThrottled
from celery_ratelimit.app import outcomes
from celery_ratelimit.limiter.limit_request import LimitRequest

Make = Callable[..., tuple[Any, Limiter]]


class TooMany(Exception):
    """A client library's own error."""


class Unprintable(Exception):
    def __repr__(self) -> str:
        raise ValueError("no text")


@pytest.fixture
def make(request: pytest.FixtureRequest) -> Make:
    """Makes a task of a limit whose breaker opens at the first failure, and the limiter of its app."""

    def make_task(body: Callable[..., Any], key: str | None = None, **options: Any) -> tuple[Any, Limiter]:
        app = Celery("a", broker="memory://", set_as_current=False)
        app.conf.ratelimit_url = "memory://"
        name, per_worker = options.pop("limit", request.node.name), options.pop("per_worker", False)
        breaker = Breaker(open_after=1)
        limit = Limit("1000/s", burst=1000, name=name, key=key, breaker=breaker, per_worker=per_worker)
        return app.task(base=RateLimitedTask, limits=limit, **options)(body), Limiter.from_app(app)

    return make_task


def run(task: Any, *args: Any) -> Any:
    """Run a task as a worker without the gate does; returns what its body returns."""
    task.push_request(id="1", args=args, kwargs={}, called_directly=False, delivery_info={"routing_key": "celery"})
    try:
        task.before_start("1", args, {})
        return task.run(*args)
    finally:
        task.pop_request()


def is_open(limiter: Limiter, name: str, key: str | None = None) -> bool:
    return limiter.config(name, key=key, force=True).by == "breaker"


def refuse(error: Exception) -> None:
    raise error


def echo(account: str) -> str:
    return account


@pytest.mark.parametrize(
    ("limit", "was_open", "cost"),
    [
        (Limit("100/s"), 60.0, 1),  # all but the last try would have come back since
        (Limit("100/m", algorithm="sliding_log"), 60.0, 13),
        (Limit("100/m", algorithm="sliding_log"), 3600.0, 13),
        (Limit("100/m", algorithm="fixed_window"), 12.0, 3),
    ],
)
def test_tries_of_a_breaker_count_when_it_has_closed(limit: Limit, was_open: float, cost: int) -> None:
    demand = LimitRequest(limit, "a", "", 1)
    assert outcomes._cost_of_tries(demand, Breaker(half_open_every=5), was_open) == cost
    assert outcomes._cost_of_tries(replace(demand, cost=7), Breaker(half_open_every=5), was_open) == 7 * cost


@pytest.mark.parametrize(
    ("error", "options"),
    [
        (UpstreamThrottled(0.01), {"throttle": "fail"}),
        (UpstreamThrottled(0.01), {"max_upstream_throttles": 0}),
        (TooMany(), {"throttle": "fail", "upstream_errors": {TooMany: lambda _: 0.01}}),
        (TooMany(), {"max_upstream_throttles": 0, "upstream_errors": {TooMany: lambda _: 0.01}}),
    ],
)
def test_final_upstream_refusal_does_not_open_the_breaker(
    make: Make, request: pytest.FixtureRequest, error: Exception, options: dict[str, Any]
) -> None:
    task, limiter = make(refuse, **options)
    with pytest.raises(type(error)) as raised:
        run(task, error)
    assert raised.value is error
    assert not is_open(limiter, request.node.name)


@pytest.mark.parametrize("error", [TooMany, Unprintable])
def test_other_error_opens_the_breaker(make: Make, request: pytest.FixtureRequest, error: type[Exception]) -> None:
    task, limiter = make(refuse)
    with pytest.raises(error):
        run(task, error())
    assert is_open(limiter, request.node.name)


def take_and_fail(order: dict[str, str]) -> None:
    raise TooMany(order.pop("account"))


def test_failure_counts_for_the_key_that_the_task_came_with(make: Make, request: pytest.FixtureRequest) -> None:
    """Its body has changed the argument in which the key is found."""
    task, limiter = make(take_and_fail, key="{order[account]}")
    with pytest.raises(TooMany):
        run(task, {"account": "a"})
    assert is_open(limiter, request.node.name, "a")


def test_cost_is_settled_for_the_key_that_the_task_came_with(make: Make, request: pytest.FixtureRequest) -> None:
    def take_and_settle(order: dict[str, str]) -> bool:
        del order["account"]
        settled: bool = task.settle(500)
        return settled

    task, limiter = make(take_and_settle, key="{order[account]}")
    assert run(task, {"account": "a"})
    assert limiter.peek(task.limits, key="a").remaining < 1000 - 400


def take_and_be_refused(order: dict[str, str]) -> None:
    raise UpstreamThrottled(30, "upstream") from TooMany(order.pop("account"))


def take_and_be_refused_elsewhere(order: dict[str, str]) -> None:
    raise UpstreamThrottled(30, "upstream", key="b") from TooMany(order.pop("account"))


def test_refusal_of_a_named_key_pauses_that_of_its_worker(make: Make) -> None:
    task, limiter = make(
        take_and_be_refused_elsewhere, key="{order[account]}", limit="upstream", throttle="fail", per_worker=True
    )
    with pytest.raises(TooMany):
        run(task, {"account": "a"})
    assert not limiter.acquire(task.limits, key="b").allowed
    assert limiter.acquire(task.limits, key="a").allowed


def test_refused_task_is_sent_again_as_it_came(make: Make) -> None:
    """In a worker without the gate."""
    task, _ = make(take_and_be_refused, key="{order[account]}", limit="upstream")
    sent: list[Any] = []
    task.signature_from_request = lambda request, args, kwargs, **options: SimpleNamespace(
        apply_async=lambda: sent.append(args)
    )
    with pytest.raises(Ignore):
        run(task, {"account": "c"})
    assert [list(args) for args in sent] == [[{"account": "c"}]]


def test_refused_task_pauses_the_key_that_it_came_with(make: Make) -> None:
    task, limiter = make(take_and_be_refused, key="{order[account]}", limit="upstream", throttle="fail")
    with pytest.raises(TooMany):
        run(task, {"account": "a"})
    assert limiter.config("upstream", key="a").paused
    assert not limiter.config("upstream", key="b").paused


def test_outcomes_of_keys_are_bounded(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outcomes, "_MOST_KEPT", 10)
    task, _ = make(echo, key="{account}")
    for account in range(25):
        run(task, str(account))
    assert len(outcomes.kept(task.app, "outcomes", dict)) <= 10


@pytest.mark.parametrize("value", ["30", b"30", float("nan"), True, [30]])
def test_invalid_retry_after_is_an_error(value: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"UpstreamThrottled: retry_after=.* must be a number of seconds"):
        UpstreamThrottled(value)


@pytest.mark.parametrize(("value", "seconds"), [(None, None), (-1, -1), (30, 30), (1e12, 86400), (float("inf"), 86400)])
def test_retry_after_is_capped_at_a_day(value: float | None, seconds: float | None) -> None:
    error = pickle.loads(pickle.dumps(UpstreamThrottled(value)))
    assert error.retry_after == seconds
    assert "the upstream has refused the call" in str(error)


@pytest.mark.parametrize("key", [7, b"a", 1.5])
def test_invalid_key_is_an_error(key: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"UpstreamThrottled: key=.* must be a text"):
        UpstreamThrottled(1, key=key)


def test_a_declared_error_is_read_as_a_number(make: Make) -> None:
    task, _ = make(refuse, upstream_errors={TooMany: lambda _: "30"})
    with pytest.raises(ConfigurationError, match="retry_after='30' must be a number of seconds"):
        run(task, TooMany())
