"""Rates by key in the code: ``rates=`` of a limit."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import redis
from celery import Celery

from celery_ratelimit import ConfigurationError, Limit, Limiter
from celery_ratelimit.backlog.scripts import weights_text
from celery_ratelimit.limiter.call_requests import demands_of
from celery_ratelimit.limiter.limit_request import each_bucket_once
from celery_ratelimit.limiter.resolve_request import RequestResolver
from celery_ratelimit.limits import key_rates
from celery_ratelimit.limits.key_rates import has_other_answers, limit_of_key
from celery_ratelimit.operations.bucket_status import standings_of
from celery_ratelimit.testing import EmbeddedServer

WRITTEN = {"gpt-large": "10/m", "*": "200/m"}


class Plans(Mapping[str, str]):
    """A mapping that is no dict, as one that reads a database."""

    stored = WRITTEN

    def __getitem__(self, key: str) -> str:
        return self.stored[key]

    def __iter__(self) -> Any:
        return iter(self.stored)

    def __len__(self) -> int:
        return len(self.stored)


def by_model(written: Any = None, **options: Any) -> Limit:
    return Limit("5/m", name="tokens", key="{model}", rates=WRITTEN if written is None else written, **options)


@pytest.mark.parametrize(
    ("written", "key", "rate"),
    [
        (WRITTEN, "gpt-large", "10/m"),
        (WRITTEN, "any other", "200/m"),
        (Plans(), "gpt-large", "10/m"),
        (Plans(), "any other", "200/m"),
        ({"a": "1/m"}, "b", "5/m"),
        (lambda key: f"{len(key)}/m", "abc", "3/m"),
        (lambda key: None, "abc", "5/m"),
        (dict(WRITTEN).get, "gpt-large", "10/m"),
    ],
)
def test_rate_of_a_key(written: Any, key: str, rate: str, caplog: pytest.LogCaptureFixture) -> None:
    (demand,) = RequestResolver({"tokens": by_model(written)}).plain("tokens", key, None, None)
    assert demand.limit.rate == rate  # type: ignore[attr-defined]
    (same,) = RequestResolver({"tokens": by_model(written)}).plain("tokens", None, None, {"model": key})
    assert same == demand
    (of_task,) = demands_of([by_model(written)], inspect.signature(lambda model: None), [key], {})
    assert of_task == demand
    assert not caplog.records
    assert has_other_answers(by_model(written)) is (type(written) is not dict)


def test_key_with_the_rate_of_the_limit_has_the_limit_itself() -> None:
    limit = by_model({"a": "5/m"})
    assert limit_of_key(limit, "a") is limit


def test_key_that_is_no_text_is_an_error() -> None:
    with pytest.raises(ConfigurationError, match=r"key=\[1\] must be a text"):
        RequestResolver({"tokens": by_model()}).plain("tokens", [1], None, None)  # type: ignore[arg-type]


def test_answers_are_cached_for_the_ttl(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, now = [], [100.0]
    monkeypatch.setattr(key_rates.time, "monotonic", lambda: now[0])

    def plan_of(key: str) -> str:
        asked.append(key)
        return f"{len(asked)}/m"

    limit = by_model(plan_of, rates_ttl=10)
    assert [limit_of_key(limit, "a").rate for _ in range(3)] == ["1/m"] * 3
    now[0] += 9.9
    assert limit_of_key(limit, "a").rate == "1/m"
    now[0] += 0.2
    assert limit_of_key(limit, "a").rate == "2/m"
    assert asked == ["a", "a"]
    for number in range(10_001):
        limit_of_key(limit, str(number))
    assert 1 < len(limit.rates._cache) < 10_000, "the cache is bounded"


@pytest.mark.parametrize("answer", [ZeroDivisionError("database"), SystemExit(1), "many", 7, "99999999999/s"])
def test_error_falls_back_to_the_limits_rate_with_one_warning(answer: Any, caplog: pytest.LogCaptureFixture) -> None:
    def plan_of(key: str) -> Any:
        if isinstance(answer, BaseException):
            raise answer
        return answer

    limit = by_model(plan_of)
    with caplog.at_level(logging.WARNING, "celery_ratelimit"):
        assert [limit_of_key(limit, key).rate for key in "abc"] == ["5/m"] * 3
    (line,) = [record.getMessage() for record in caplog.records]
    assert "name='tokens'" in line
    assert "key 'a'" in line


def test_limits_of_keys_count_as_one_limit() -> None:
    limit = by_model()
    demands = [RequestResolver({"tokens": limit}).plain("tokens", key, None, None)[0] for key in ("gpt-large", "b")]
    assert len(each_bucket_once(demands)) == 2
    assert len({weights_text(demand.limit) for demand in demands} | {weights_text(limit)}) == 1
    assert weights_text(limit) != weights_text(by_model({**WRITTEN, "b": "1/m"}))


def test_each_key_has_its_rate_and_a_stored_rate_wins(limiter: Limiter) -> None:
    limiter.quotas["tokens"] = by_model()
    intervals = [limiter.acquire("tokens", key=key).states[0].interval for key in ("gpt-large", "b")]
    assert intervals == [6.0, 0.3]
    config = limiter.config("tokens", key="gpt-large")
    assert config.in_force.rate == "10/m"  # type: ignore[union-attr]
    limiter.set_rate("tokens", "60/m", key="gpt-large")
    assert limiter.config("tokens", key="gpt-large").in_force.rate == "60/m"  # type: ignore[union-attr]
    assert limiter.peek("tokens", key="gpt-large").states[0].interval == 1.0
    limiter.unset_rate("tokens", key="gpt-large")
    assert limiter.config("tokens", key="gpt-large").in_force.rate == "10/m"  # type: ignore[union-attr]


def test_displays_show_the_rate_of_the_key_and_call_no_code_of_users(
    server: EmbeddedServer, store: redis.Redis
) -> None:
    app = Celery("displays", broker="memory://", set_as_current=False)
    app.conf.ratelimit_url = server.url
    asked = {"tokens": by_model(), "plans": replace(by_model(lambda key: "1/m"), name="plans")}
    known, other, plan = standings_of(app, asked, [("tokens", "gpt-large"), ("tokens", "b"), ("plans", "a")])
    assert (known.interval, other.interval, plan.interval) == (6.0, 0.3, 12.0)
    assert str(known.config.in_force) == "tokens: 10/m"
    assert "rates by <lambda>" in str(plan.config.in_force)


def test_changed_answer_changes_the_rate(limiter: Limiter) -> None:
    plans = {"a": "60/m"}
    limiter.quotas["plans"] = replace(by_model(lambda key: plans[key], rates_ttl=1e-9), name="plans", burst=9)
    calls: list[dict[str, Any]] = [{"key": "a"}, {"args": {"model": "a"}}]
    assert [limiter.acquire("plans", **call).states[0].interval for call in calls] == [1.0, 1.0]
    plans["a"] = "30/m"
    assert [limiter.acquire("plans", **call).states[0].interval for call in calls] == [2.0, 2.0]
