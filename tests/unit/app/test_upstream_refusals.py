"""Refusals of an upstream, and the breaker of a task's limit."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from celery.exceptions import Ignore

from celery_ratelimit import Breaker, ConfigurationError, Limit, Limiter, RateLimitedTask, UpstreamThrottled
from celery_ratelimit.app import breaker_outcomes
from celery_ratelimit.limiter.limit_request import LimitRequest
from celery_ratelimit.testing import clear_memory

Make = Callable[..., tuple[Any, Limiter]]


class TooMany(Exception):
    """A client library's own error."""


class Unprintable(Exception):
    def __repr__(self) -> str:
        raise ValueError("no text")


@pytest.fixture
def make() -> Iterator[Make]:
    """Makes a task of a limit whose breaker opens at the first failure, and the limiter of its app."""

    def make_task(body: Callable[..., Any], key: str | None = None, **options: Any) -> tuple[Any, Limiter]:
        app = Celery("a", broker="memory://", set_as_current=False)
        app.conf.ratelimit_url = "memory://"
        breaker, per_worker = Breaker(open_after=1), options.pop("per_worker", False)
        limit = Limit("1000/s", burst=1000, name="upstream", key=key, breaker=breaker, per_worker=per_worker)
        return app.task(base=RateLimitedTask, limits=limit, **options)(body), Limiter.from_app(app)

    clear_memory()
    yield make_task
    clear_memory()


def run(task: Any, *args: Any) -> Any:
    """Run a task as a worker without the gate does; returns what its body returns."""
    task.push_request(id="1", args=args, kwargs={}, called_directly=False, delivery_info={"routing_key": "celery"})
    try:
        task.before_start("1", args, {})
        return task.run(*args)
    finally:
        task.pop_request()


def is_open(limiter: Limiter, key: str | None = None) -> bool:
    return limiter.config("upstream", key=key, force=True).by == "breaker"


def refuse(error: Exception) -> None:
    raise error


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
    assert breaker_outcomes._cost_of_tries(demand, Breaker(half_open_every=5), was_open) == cost
    assert breaker_outcomes._cost_of_tries(replace(demand, cost=7), Breaker(half_open_every=5), was_open) == 7 * cost


@pytest.mark.parametrize("options", [{"throttle": "fail"}, {"max_upstream_throttles": 0}])
@pytest.mark.parametrize(
    ("error", "declared"), [(UpstreamThrottled(0.01), {}), (TooMany(), {"upstream_errors": {TooMany: lambda _: 0.01}})]
)
def test_final_upstream_refusal_does_not_open_the_breaker(
    make: Make, error: Exception, declared: dict[str, Any], options: dict[str, Any]
) -> None:
    task, limiter = make(refuse, **declared, **options)
    with pytest.raises(type(error)) as raised:
        run(task, error)
    assert raised.value is error
    assert not is_open(limiter)


@pytest.mark.parametrize("error", [TooMany, Unprintable])
def test_other_error_opens_the_breaker(make: Make, error: type[Exception]) -> None:
    task, limiter = make(refuse)
    with pytest.raises(error):
        run(task, error())
    assert is_open(limiter)


# -- The body has changed the argument in which the key is found -------------------------------------------------------

KEY = "{order[account]}"


def take_and_fail(order: dict[str, str]) -> None:
    raise TooMany(order.pop("account"))


def take_and_be_refused(order: dict[str, str], key: str | None = None) -> None:
    raise UpstreamThrottled(30, "upstream", key) from TooMany(order.pop("account"))


def test_failure_counts_for_the_key_that_the_task_came_with(make: Make) -> None:
    task, limiter = make(take_and_fail, KEY)
    with pytest.raises(TooMany):
        run(task, {"account": "a"})
    assert is_open(limiter, "a")


def test_cost_is_settled_for_the_key_that_the_task_came_with(make: Make) -> None:
    def take_and_settle(order: dict[str, str]) -> bool:
        del order["account"]
        settled: bool = task.settle(60_000)
        return settled

    task, limiter = make(take_and_settle, KEY)
    assert run(task, {"account": "a"})
    assert limiter.peek(task.limits, key="a").remaining == 0


@pytest.mark.parametrize(("named", "paused", "open"), [([], "a", "b"), (["b"], "b", "a")])
def test_refusal_pauses_the_key_that_it_names_or_the_task_came_with(
    make: Make, named: list[str], paused: str, open: str
) -> None:
    task, limiter = make(take_and_be_refused, KEY, throttle="fail", per_worker=bool(named))
    with pytest.raises(TooMany):
        run(task, {"account": "a"}, *named)
    assert not limiter.acquire(task.limits, key=paused).allowed
    assert limiter.acquire(task.limits, key=open).allowed


def test_refused_task_is_sent_again_as_it_came(make: Make) -> None:
    """In a worker without the gate."""
    task, _ = make(take_and_be_refused, KEY)
    sent: list[Any] = []
    task.signature_from_request = lambda request, args, kwargs, **options: SimpleNamespace(
        apply_async=lambda: sent.append(args)
    )
    with pytest.raises(Ignore):
        run(task, {"account": "c"})
    assert [list(args) for args in sent] == [[{"account": "c"}]]


def test_outcomes_of_keys_are_bounded(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(breaker_outcomes, "_MOST_KEPT", 10)

    def echo(account: str) -> str:
        return account

    task, _ = make(echo, "{account}")
    for account in range(25):
        run(task, str(account))
    assert len(breaker_outcomes.kept(task.app, "outcomes", dict)) <= 10


@pytest.mark.parametrize(
    ("options", "message"),
    [
        *[({"retry_after": value}, "a number of seconds") for value in ("30", b"30", float("nan"), True, [30])],
        *[({"key": value}, "a text") for value in (7, b"a", 1.5)],
    ],
)
def test_invalid_refusal_is_an_error(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"UpstreamThrottled: {next(iter(options))}=.* must be {message}"):
        UpstreamThrottled(**options)


@pytest.mark.parametrize(("value", "seconds"), [(None, None), (-1, -1), (30, 30), (1e12, 86400), (float("inf"), 86400)])
def test_retry_after_is_capped_at_a_day(value: float | None, seconds: float | None) -> None:
    error = pickle.loads(pickle.dumps(UpstreamThrottled(value)))
    assert error.retry_after == seconds
    assert "the upstream has refused the call" in str(error)


def test_a_declared_error_is_read_as_a_number(make: Make) -> None:
    task, _ = make(refuse, upstream_errors={TooMany: lambda _: "30"})
    with pytest.raises(ConfigurationError, match="retry_after='30' must be a number of seconds"):
        run(task, TooMany())
