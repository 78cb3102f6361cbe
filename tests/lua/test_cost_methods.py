"""The real costs of a call settle several limits at once."""

from __future__ import annotations

import pytest
import redis

from celery_ratelimit import ConfigurationError, Limit, Limiter

TOKENS = Limit("1000/h", burst=1000, name="tokens")
REQUESTS = Limit("10/h", algorithm="fixed_window", name="requests")


def scripts_run(store: redis.Redis) -> int:
    return sum(each["calls"] for name, each in store.info("commandstats").items() if name.startswith("cmdstat_evalsha"))


def test_several_limits_are_settled_in_one_round_trip(frozen: Limiter, store: redis.Redis) -> None:
    warm = frozen.acquire([TOKENS, REQUESTS])
    frozen.settle(warm, 0)  # the script is loaded
    frozen.reset([TOKENS, REQUESTS])
    decision = frozen.acquire([TOKENS, REQUESTS], cost=5)
    before = scripts_run(store)
    assert frozen.settle(decision, {"tokens": 900, "requests": 1})
    assert scripts_run(store) == before + 1
    assert (frozen.available(TOKENS), frozen.available(REQUESTS)) == (100, 9)
    assert not frozen.settle(decision, {"tokens": 0}), "once"
    assert (frozen.available(TOKENS), frozen.available(REQUESTS)) == (100, 9)


def test_settle_keeps_the_cost_of_limits_that_it_does_not_name(frozen: Limiter) -> None:
    decision = frozen.acquire([TOKENS, REQUESTS], cost=5)
    assert frozen.settle(decision, {"tokens": 3})
    assert (frozen.available(TOKENS), frozen.available(REQUESTS)) == (997, 5)


def test_settle_of_an_unknown_limit_changes_nothing(frozen: Limiter) -> None:
    decision = frozen.acquire([TOKENS, REQUESTS], cost=5)
    with pytest.raises(ConfigurationError, match=r"no limit 'token' in this decision \(limits: tokens, requests\)"):
        frozen.settle(decision, {"token": 3, "requests": 0})
    with pytest.raises(ConfigurationError, match=r"limit 'requests': an actual cost of 1\.5 is not a whole number"):
        frozen.settle(decision, {"tokens": 3, "requests": 1.5})  # type: ignore[dict-item]
    assert (frozen.available(TOKENS), frozen.available(REQUESTS)) == (995, 5)
    assert frozen.settle(decision, {"requests": 0})
