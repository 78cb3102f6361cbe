"""The deadline of a parked RabbitMQ message with a time to live."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import amqp
import pytest

from celery_ratelimit._celery.requests import deadline_of, is_past_deadline
from celery_ratelimit._celery.saved_message import ReturnAddress, as_sent, parcel_of

MARKER = {"queue": "jobs", "eta": None, "exchange": "", "routing_key": "jobs"}
BACK = ReturnAddress("jobs.throttled", "jobs.throttled.fanout", 3.0)
#: A deadline of an earlier return.
BEFORE = 5_000_000


def a_request(
    *, expiration: str | None = None, deadline: int | None = None, expires: Any = None, on_amqp: bool = True, age: float
) -> Any:
    headers = {} if deadline is None else {"celery-ratelimit-return": {**MARKER, "deadline": deadline}}
    message = SimpleNamespace(
        headers={"id": "1", "eta": None, **headers},
        properties={} if expiration is None else {"expiration": expiration},
        channel=amqp.Channel.__new__(amqp.Channel) if on_amqp else None,
        delivery_info={},
        ratelimit_received_at=time.monotonic() - age,
        body=b"[]",
        content_type="application/json",
        content_encoding="utf-8",
    )
    info = {"exchange": "shop", "routing_key": "charge"}
    return SimpleNamespace(message=message, delivery_info=info, expires=expires, name="task", id="1")


@pytest.mark.parametrize(
    ("ttl", "message", "left"),
    [
        (None, {}, None),
        (3.0, {}, 2.0),
        (None, {"expiration": "2500"}, 1.5),
        (3.0, {"expiration": "2500"}, 1.5),
        (3.0, {"expiration": "9000"}, 2.0),
        (None, {"expiration": "2500", "expires": object()}, None),  # Celery ends it
        (None, {"expiration": "2500", "on_amqp": False}, None),  # nothing would end it there
        (None, {"deadline": BEFORE}, None),  # a dead letter, with a new life
        (3.0, {"deadline": BEFORE}, 2.0),
    ],
)
def test_deadline_counts_from_the_delivery(ttl: float | None, message: dict[str, Any], left: float | None) -> None:
    before, found, after = time.time(), deadline_of(a_request(age=1.0, **message), ttl, time.time), time.time()
    if left is None:
        assert found is None
    else:
        assert found is not None
        assert before + left - 0.5 <= found / 1e6 <= after + left + 0.001


def test_deadline_survives_a_return() -> None:
    request = a_request(age=1.0, deadline=BEFORE, expiration="700")
    assert deadline_of(request, 3.0, time.time) == BEFORE


@pytest.mark.parametrize(
    ("deadline", "expiration", "is_past"),
    [(-0.5, "1", False), (-1.5, "1", True), (60.0, "1", False), (-1.5, None, False), (None, "1", False)],
)
def test_message_delivered_after_its_deadline_is_past_it(
    deadline: float | None, expiration: str | None, is_past: bool
) -> None:
    at = None if deadline is None else round((time.time() + deadline) * 1e6)
    assert is_past_deadline(a_request(age=1.0, deadline=at, expiration=expiration), time.time) == is_past


def test_parked_message_is_published_with_its_remaining_time() -> None:
    parcel = parcel_of(a_request(age=1.0), "jobs", BACK, "1@jobs", 7_000_000)
    assert (parcel["to"], parcel["exchange"], parcel["expires"]) == ("jobs.throttled", "jobs.throttled.fanout", 7.0)
    sent = as_sent(parcel)
    assert (sent["to"], sent["expires"], sent["exchange"]) == ("jobs", 7.0, "")
    again = parcel_of(a_request(age=1.0, deadline=BEFORE), "jobs", BACK)
    assert again["expires"] is None
    assert "deadline" not in again["headers"]["celery-ratelimit-return"]
