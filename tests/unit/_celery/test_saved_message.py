"""The header of a throttled message, and its countdown by the clock of the store."""

from __future__ import annotations

from datetime import datetime, timezone
from types import SimpleNamespace
from typing import Any

import pytest

from celery_ratelimit._celery.consumed_queues import ConsumedQueues
from celery_ratelimit._celery.publish_again import publish
from celery_ratelimit._celery.requests import remove_marker
from celery_ratelimit._celery.saved_message import (
    ReturnAddress,
    as_sent,
    marker_in,
    marker_in_headers,
    parcel_in,
    parcel_of,
    set_countdown,
)

MARKER = {"queue": "celery", "eta": None, "exchange": "", "routing_key": "celery"}
BACK = {**MARKER, "lot": ["name", "key"], "id": "1@celery", "copy": 2, "since": 5}
BACK_BY = ReturnAddress("celery.throttled")
OF_OTHERS = ["mine", 5, None, [], {}, {"limit": 5}, {"queue": "x"}, {**MARKER, "mine": 1}]


def a_request(**headers: Any) -> SimpleNamespace:
    message = SimpleNamespace(
        headers={"id": "1", "eta": None} | headers,
        properties={"correlation_id": "1"},
        delivery_info={},
        body=b"[]",
        content_type="application/json",
        content_encoding="utf-8",
    )
    info = {"exchange": "", "routing_key": "celery"}
    return SimpleNamespace(message=message, delivery_info=info, expires=None)


class Published:
    """A producer that keeps what it was told."""

    connection = None

    def __init__(self) -> None:
        self.headers: dict[str, Any] = {}

    def publish(self, body: Any, *, headers: dict[str, Any], **options: Any) -> None:
        self.headers, self.options = headers, options


@pytest.mark.parametrize("own", OF_OTHERS, ids=repr)
def test_users_own_header_is_kept_and_is_no_marker(own: Any) -> None:
    request = a_request(ratelimit=own)
    assert marker_in(request.message) == {}
    assert parcel_of(request, "celery", None)["headers"]["ratelimit"] == own
    parked = parcel_of(request, "celery", BACK_BY)
    assert parked["headers"]["ratelimit"] == own
    assert marker_in_headers(parked["headers"]) == MARKER
    producer = Published()
    publish(producer, parked, 0.0, {"copy": 1, "lot": ("a", "b"), "id": "1", "since": 1})
    assert producer.headers["ratelimit"] == own
    assert marker_in_headers(producer.headers)["copy"] == 1
    back = parcel_of(a_request(**producer.headers), "celery", None)
    assert back["headers"] == request.message.headers


@pytest.mark.parametrize("redelivered", [False, True])
def test_task_of_a_redelivered_message_finds_that_it_was_redelivered(redelivered: bool) -> None:
    """The broker says so of a message, and not of the same message when it is published again."""
    request = a_request()
    request.message.delivery_info["redelivered"] = redelivered
    parked = parcel_of(request, "celery", BACK_BY)
    producer = Published()
    publish(producer, parked, 1.0)
    returned = a_request(**producer.headers)
    routes = [
        producer.headers,
        as_sent(parked)["headers"],
        parcel_of(request, "slow", None)["headers"],  # redirected
        parcel_of(returned, "celery", BACK_BY)["headers"],  # throttled again
        as_sent(parcel_in(returned.message))["headers"],  # from its return queue
    ]
    for headers in routes:
        again = a_request(**headers)
        again.request_dict = dict(headers)
        again.delivery_info["redelivered"] = False
        remove_marker(again)
        assert again.delivery_info == {"exchange": "", "routing_key": "celery", "redelivered": redelivered}
        assert again.request_dict == {"id": "1", "eta": None}, "a retry does not inherit it"


def test_overlong_routing_key_invalidates_the_marker() -> None:
    """RabbitMQ's client takes it for an error of the connection."""
    for key, found in (("x" * 255, True), ("x" * 256, False), ("é" * 128, False), (None, True)):
        message = a_request(**{"celery-ratelimit-return": {**BACK, "routing_key": key}}).message
        assert bool(marker_in(message)) == found


def test_marker_is_cached_while_the_headers_stay() -> None:
    message = a_request(**{"celery-ratelimit-return": BACK}).message
    first = marker_in(message)
    assert first == BACK
    assert marker_in(message) is first
    message.headers = {"id": "1"}
    assert marker_in(message) == {}


def test_slotted_message_is_read_without_a_cache() -> None:
    """py-amqp's."""

    class Bare:
        __slots__ = ("headers",)

    message = Bare()
    message.headers = {"celery-ratelimit-return": BACK}
    assert marker_in(message) == marker_in(message) == BACK


def returning(slot: int | None = 1_000_000, wait: int = 900_000, eta: str | None = "2000-01-01T00:00:00+00:00") -> Any:
    marker = {**BACK, "wait": wait, **({} if slot is None else {"slot": slot})}
    message = a_request(**{"celery-ratelimit-return": marker}).message
    message.headers["eta"] = eta
    return message


@pytest.mark.parametrize(
    ("message", "until", "seconds"),
    [
        (returning(), 0.5, 0.45),  # a twentieth of a second before its slot
        (returning(), 0.01, -0.04),  # it has its turn
        (returning(), -3600.0, -3600.05),
        (returning(), 3600.0, 0.9),  # the store's clock was set back: no longer than it was sent away for
        (returning(), None, 0.9),  # the store's time is not known: from the delivery on
        (returning(slot=None), 0.5, 0.9),
        (returning(wait=900_000_000), None, 720.0),  # no longer than a message is held
        (returning(eta=None), 0.5, None),  # it has no countdown
        (a_request().message, 0.5, None),  # nor has one that was not throttled
        (a_request(eta="2030-01-01T00:00:00+00:00").message, 0.5, None),  # of the user's
    ],
)
def test_countdown_follows_the_clock_of_the_store(message: Any, until: float | None, seconds: float | None) -> None:
    message, before = SimpleNamespace(headers=dict(message.headers)), message.headers["eta"]
    now = datetime.now(timezone.utc)
    found = set_countdown(message, lambda slot: until, 0.05, lambda queue: 720.0)
    eta = message.headers["eta"]
    if seconds is None:
        assert (found, eta) == (None, before)
        return
    assert found == pytest.approx(seconds)
    if seconds <= 0:
        assert eta is None
    else:
        assert 0 <= (datetime.fromisoformat(eta) - now).total_seconds() - seconds < 10


def test_wait_and_slot_of_an_earlier_return_are_dropped() -> None:
    producer = Published()
    publish(producer, parcel_of(a_request(), "celery", BACK_BY), 0.5, {"copy": 1, "slot": 5})
    assert marker_in_headers(producer.headers) == {**MARKER, "copy": 1, "slot": 5, "wait": 500_000}
    again = parcel_of(a_request(**producer.headers), "celery", BACK_BY)
    publish(producer, again, 0.0, {"copy": 2})
    assert marker_in_headers(producer.headers) == {**MARKER, "copy": 2}


def test_sqs_deduplication_properties_are_dropped() -> None:
    """A return with the deduplication id that it was sent with would be dropped, and the task lost."""
    request = a_request()
    request.message.properties |= {"MessageGroupId": "a", "MessageDeduplicationId": "1", "DelaySeconds": 900}
    for back in (BACK_BY, None):
        producer = Published()
        publish(producer, parcel_of(request, "celery", back))
        assert producer.options["MessageGroupId"] == "a"
        assert not {"MessageDeduplicationId", "DelaySeconds"} & producer.options.keys()


# -- The original queue of a message whose header names an unknown one -------------------------------------------------


class Names:
    """Of a worker that consumes "celery" and "emails", beside their return queues."""

    def __init__(self) -> None:
        self.queues = {"celery": None, "emails": None}

    def make_name(self, queue: str) -> str:
        return f"{queue}.throttled"

    def origin_of(self, name: str) -> str:
        return name.removesuffix(".throttled")


@pytest.mark.parametrize(
    ("says", "came_by", "taken_as"),
    [
        ("celery", "celery.throttled", "celery"),
        ("emails", "celery.throttled", "emails"),  # one return queue for both
        ("elsewhere", "celery.throttled", "elsewhere"),  # the app has it, other workers consume it
        ("gone", "celery.throttled", "celery"),
        ("gone", "gone", "gone"),
        ("celery", "emails", "emails"),  # a dead letter
        (None, "celery", None),
    ],
)
def test_message_from_an_unknown_queue_belongs_to_its_receiving_queue(
    says: str | None, came_by: str, taken_as: str | None
) -> None:
    consumption: Any = ConsumedQueues.__new__(ConsumedQueues)
    consumption._names = Names()
    consumption._consumer = SimpleNamespace(
        app=SimpleNamespace(amqp=SimpleNamespace(queues={"celery": 1, "elsewhere": 1}))
    )
    headers = {} if says is None else {"celery-ratelimit-return": {**MARKER, "queue": says}}
    message = SimpleNamespace(headers=headers, ratelimit_queue=came_by, delivery_info={})
    consumption.correct_queue(message)
    assert marker_in(message).get("queue") == taken_as
