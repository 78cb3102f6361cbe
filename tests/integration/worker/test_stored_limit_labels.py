"""Labels of stored rates for log lines: the rate in force and its author; the store is asked once."""

from __future__ import annotations

import pytest
import redis

from celery_ratelimit import Concurrency, Limit, Limiter
from celery_ratelimit.limiter.limit_request import LimitRequest
from celery_ratelimit.limits.any_limit import AnyLimit
from celery_ratelimit.store_calls.outage import Outage
from celery_ratelimit.worker.stored_rate_labels import StoredLimitLabels

STRIPE = Limit("100/s", name="stripe")
TENANT = Limit("5/s", name="tenant", key="tenant:{tenant}")


@pytest.fixture
def outage(limiter: Limiter) -> Outage:
    return Outage(limiter._asker, lambda call: call(), lambda: None)


@pytest.fixture
def rates(limiter: Limiter, outage: Outage) -> StoredLimitLabels:
    return StoredLimitLabels(limiter._asker, outage)


def asked(store: redis.Redis) -> int:
    calls = store.info("commandstats")
    return sum(calls.get(f"cmdstat_{verb}", {}).get("calls", 0) for verb in ("evalsha", "eval"))


@pytest.mark.parametrize(
    ("code", "stored", "said"),
    [
        (STRIPE, Limit("20/s", burst=5), "20/s set by anna"),
        (STRIPE, Limit("100/s"), ""),
        (Limit("1000/h", name="stripe", algorithm="sliding_log"), Limit("1000/d", algorithm="sliding_log"), "1000/d"),
        (Concurrency(4, name="gpu"), Concurrency(2), "2 at once set by anna"),
    ],
)
def test_label_of_a_stored_limit(
    limiter: Limiter, rates: StoredLimitLabels, code: AnyLimit, stored: AnyLimit, said: str
) -> None:
    demand = LimitRequest(code, str(code.name))
    assert rates.of(demand, 0.0) == ""
    limiter.set_rate(demand.name, stored, by="anna", force=True)
    rates.forget({demand.name})
    assert rates.of(demand, 0.0).startswith(said)
    assert bool(rates.of(demand, 0.0)) == bool(said)


def test_label_is_read_once_until_the_limit_changes(
    limiter: Limiter, rates: StoredLimitLabels, store: redis.Redis
) -> None:
    demand = LimitRequest(STRIPE, "stripe")
    store.config_resetstat()
    for _ in range(10):
        assert rates.of(demand, 0.01) == ""
    assert asked(store) == 1
    limiter.set_rate("stripe", "20/s", by="anna", force=True)
    assert rates.of(demand, 0.05) == "20/s set by anna", "a decision was told of it before the worker has looked"
    limiter.set_rate("stripe", "10/s", by="bob", force=True)
    store.config_resetstat()
    for _ in range(10):
        assert rates.of(demand, 0.1) == "", "and no more often than once a second"
    assert asked(store) == 0
    rates.forget({"stripe"})
    assert rates.of(demand, 0.1) == "10/s set by bob"


def test_label_of_a_key_is_read_where_its_rate_differs(
    limiter: Limiter, rates: StoredLimitLabels, store: redis.Redis
) -> None:
    limiter.set_rate("tenant", "50/s", key="tenant:7", by="anna", force=True)
    store.config_resetstat()
    for number in range(20):
        key = f"tenant:{number}"
        said = rates.of(LimitRequest(TENANT, "tenant", key), 0.02 if number == 7 else 0.2)
        assert said == ("50/s set by anna" if number == 7 else "")
    assert asked(store) == 2, "of the limit, and of that key"


def test_lost_store_gives_no_label_and_begins_no_outage(
    limiter: Limiter, outage: Outage, rates: StoredLimitLabels
) -> None:
    limiter.client.close()
    broken = StoredLimitLabels(Limiter.from_url("redis://127.0.0.1:1/0")._asker, outage)
    assert broken.of(LimitRequest(STRIPE, "stripe"), 0.05) == ""
    assert not outage, "a worker takes no store for lost for a line in the log"
