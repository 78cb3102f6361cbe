"""Rates of single keys in code: a mapping, or a function with a cache."""

from __future__ import annotations

import logging
import pickle
from typing import Any

import pytest
import redis

from celery_ratelimit import ConfigurationError, Limit, Limiter
from celery_ratelimit.limits import key_rates
from celery_ratelimit.testing import EmbeddedServer
from tests.conftest import Clock

from .frozen import FROZEN_STORE

MODELS = Limit("60/m", name="models", key="{model}", rates={"large": "10/s", "*": "2/s"}, burst=2)


def make(server: EmbeddedServer, limit: Limit = MODELS) -> Limiter:
    client = redis.Redis.from_url(server.url)
    return Limiter(client, quotas={"models": limit}, replace_includes={"now": FROZEN_STORE}, counts=False)


def wait(limiter: Limiter, key: str, **how: Any) -> float:
    """How long a call waits when the burst is used."""
    for _ in range(2):
        assert limiter.acquire("models", **(how or {"key": key})).allowed
    return limiter.acquire("models", **(how or {"key": key})).retry_after


@pytest.mark.parametrize(("key", "seconds"), [("large", 0.1), ("small", 0.5), ("*", 0.5)])
def test_each_key_has_its_rate(server: EmbeddedServer, clock: Clock, key: str, seconds: float) -> None:
    limiter = make(server)
    assert wait(limiter, key) == seconds
    assert limiter.config("models", key=key).in_force == MODELS.of_key(key)
    assert limiter.config("models").in_force == MODELS
    clock.advance(10)
    assert wait(limiter, key, args={"model": key}) == seconds
    assert limiter.peek("models", key=key).states[0].interval == seconds


def test_a_key_without_a_rate_has_the_limits_own(server: EmbeddedServer, clock: Clock) -> None:
    limiter = make(server, Limit("4/s", name="models", key="{model}", rates={"large": "10/s"}, burst=2))
    assert wait(limiter, "small") == 0.25


def test_what_an_operator_has_stored_for_a_key_or_the_limit_goes_first(server: EmbeddedServer, clock: Clock) -> None:
    limiter = make(server)
    limiter.set_rate("models", "1/s", key="large")
    assert wait(limiter, "large") == 1
    assert wait(limiter, "small") == 0.5
    limiter.unset_rate("models", key="large")
    limiter.set_rate("models", "5/s")
    clock.advance(10)
    assert wait(limiter, "large") == 0.2


def test_a_function_is_asked_again_when_its_answer_is_old(
    server: EmbeddedServer, clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now, plans = [100.0], {"a": "10/s", "b": None}
    monkeypatch.setattr(key_rates.time, "monotonic", lambda: now[0])
    limiter = make(server, Limit("4/s", name="models", key="{model}", rates=lambda key: plans[key], burst=2))
    waits = [wait(limiter, key) for key in "ab"]
    assert waits == [0.1, 0.25]
    plans |= {"a": "1/s"}
    for seconds, expected in [(59, 0.1), (2, 1.0)]:
        now[0] += seconds
        clock.advance(10)
        assert wait(limiter, "a") == expected
    plans["a"] = "as before"
    now[0] += 61
    clock.advance(10)
    with caplog.at_level(logging.WARNING, "celery_ratelimit"):
        assert wait(limiter, "a") == 1.0, "its last rate"
        assert wait(limiter, "unknown") == 0.25, "an error is the limit's own rate"
    (record,) = caplog.records
    assert "rates= gives no rate for key 'a', so '1/s', as before, holds" in record.getMessage()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"rates": {"a": "fast"}, "key": "{a}"}, "fast"),
        ({"rates": ["1/s"], "key": "{a}"}, "must be a mapping of keys to rates, or a function"),
        ({"rates": {"a": "1/s"}}, "it has none, give it key="),
        ({"rates": {"a": "1/s"}, "key": "{a}", "per_worker": True}, "per_worker=True has its own"),
        ({"rates": {"a": "1/s"}, "key": "{a}", "rates_ttl": 0}, "rates_ttl=0 must be seconds"),
    ],
)
def test_impossible_rates_are_an_error(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        Limit("1/s", **options)


def test_such_limits_are_equal_hashable_and_go_to_other_processes() -> None:
    same = Limit("60/m", name="models", key="{model}", rates={"*": "2/s", "large": "10/s"}, burst=2)
    assert same == MODELS
    assert hash(same) == hash(MODELS)
    assert pickle.loads(pickle.dumps(same)) == MODELS
