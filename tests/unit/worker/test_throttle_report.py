"""The report of a throttled task: log line, event, error."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest

from celery_ratelimit import Concurrency, Limit, Throttled
from celery_ratelimit.limiter.limit_request import LimitRequest
from celery_ratelimit.worker.reporting import ThrottleReport

STRIPE = LimitRequest(Limit("100/s", name="stripe"), "stripe")
TENANT = LimitRequest(Limit("5/s", name="tenant", key="tenant:{tenant_id}"), "tenant", "tenant:7")
BOUNDED = LimitRequest(Limit("5/s", name="bounded", max_parked=9), "bounded")


@pytest.mark.parametrize(
    ("report", "text"),
    [
        (ThrottleReport("parked", 1.99, STRIPE), "'stripe' (100/s): parked, its turn is in 1.990 s"),
        (
            ThrottleReport("waiting", 0.5, TENANT),
            "'tenant' (5/s, key 'tenant:7'): waits in this worker, its turn is in 0.500 s",
        ),
        (
            ThrottleReport("returned", 5, STRIPE, 0.5),
            "'stripe' (100/s in code, 2/s now): sent back, its turn is in 5.000 s",
        ),
        (
            ThrottleReport("returned", 5, TENANT, 0.5, "2/s set by anna"),
            "'tenant' (5/s in code, 2/s set by anna, key 'tenant:7'): sent back, its turn is in 5.000 s",
        ),
        (ThrottleReport("dropped", 0.01, STRIPE, 0.01), "'stripe' (100/s): dropped, a permit is free in 0.010 s"),
        (
            ThrottleReport("failed", 12.34, TENANT, max_wait=2),
            "'tenant' (5/s, key 'tenant:7'): failed, as its turn would be in 12.340 s, beyond max_wait=2 s",
        ),
        (
            ThrottleReport("failed", 0.978, STRIPE, max_wait=2, waited=1.5),
            "'stripe' (100/s): failed, as its turn would be in 0.978 s after 1.500 s of waiting, beyond max_wait=2 s",
        ),
        (
            ThrottleReport("diverted", 12.34, STRIPE, max_wait=2, to="later"),
            "'stripe' (100/s): sent on to queue 'later', as its turn would be in 12.340 s, beyond max_wait=2 s",
        ),
        (
            ThrottleReport("failed", 0.2, STRIPE, queue_full=True),
            "'stripe' (100/s): failed, as there is no room to wait, but in 0.200 s",
        ),
        (
            ThrottleReport("dropped", 12.34, BOUNDED, queue_full=True),
            "'bounded' (5/s): dropped, as 9 tasks wait already (max_parked), and its turn would be in 12.340 s",
        ),
        (ThrottleReport("parked", 12.34, BOUNDED), "'bounded' (5/s): parked, its turn is in 12.340 s"),
        (
            ThrottleReport("parked", 1, LimitRequest(Concurrency(4, name="gpu"), "gpu")),
            "'gpu' (4 at once): parked, its turn is in 1.000 s",
        ),
        (
            ThrottleReport("parked", 1e9 - 1, STRIPE),
            "'stripe' (100/s): parked, its turn comes when the limit is resumed",
        ),
    ],
)
def test_log_line(report: ThrottleReport, text: str) -> None:
    assert str(report) == f"throttled by limit {text}"


def test_log_line_of_an_outage() -> None:
    text = "throttled while the limiter's store does not answer: sent back for 2.000 s"
    assert str(ThrottleReport("returned", 2)) == text


def test_reason_names_max_parked() -> None:
    reason = ThrottleReport("dropped", 12.34, BOUNDED, queue_full=True).reason
    assert reason == (
        "throttled by limit 'bounded': a permit is free in 12.340 s, and 9 tasks wait already (max_parked)"
    )
    assert ThrottleReport("dropped", 12.34, BOUNDED).error.max_parked is None


def test_event_fields() -> None:
    fields = ThrottleReport("failed", 12.34, TENANT, max_wait=2).fields()
    assert fields == {
        "retry_after": 12.34,
        "limit": "tenant",
        "outcome": "failed",
        "rate": "5/s",
        "key": "tenant:7",
        "reason": "throttled by limit 'tenant', key 'tenant:7': a permit is free in 12.340 s, beyond max_wait=2 s",
    }
    lost = ThrottleReport("returned", 2).fields()
    assert (lost["limit"], lost["key"], lost["rate"]) == (None, "", "")
    assert json.loads(json.dumps([fields, lost])) == [fields, lost]


@pytest.mark.parametrize(
    "arguments", [("a", 1.5), ("a", 1.5, 2.0), ("a", 1.5, None, "k"), ("a", 1.5, 2.0, "k"), ("a", 1.5, None, "", 9)]
)
def test_throttled_error_survives_a_result_backend(arguments: tuple[Any, ...]) -> None:
    error = Throttled(*arguments)
    for again in (pickle.loads(pickle.dumps(error)), Throttled(*error.args)):
        assert str(again) == str(error)
        assert vars(again) == vars(error)
    assert len(Throttled("api", 1.5).args) == 2, "older versions take no more"
