"""What a message says of its coming back: under a name that nobody else has, and as version 0.1 reads and writes it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from celery_ratelimit._celery.saved_message import marker_among, marker_in, parcel_of, publish, without_marker

MARKER = {"queue": "celery", "eta": None, "exchange": "", "routing_key": "celery"}
BACK = {**MARKER, "lot": ["name", "key"], "id": "1@celery", "copy": 2, "since": 5}
OF_OTHERS = ["mine", 5, None, [], {}, {"limit": 5}, {"queue": "x"}, {**MARKER, "mine": 1}]


def a_request(**headers: Any) -> SimpleNamespace:
    message = SimpleNamespace(
        headers={"id": "1", "eta": None, **headers},
        properties={"correlation_id": "1"},
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
def test_a_users_own_header_is_nobodys_marker(own: Any) -> None:
    request = a_request(ratelimit=own)
    assert marker_in(request.message) == {}
    assert parcel_of(request, "celery", "")["headers"]["ratelimit"] == own
    parked = parcel_of(request, "celery", "celery.throttled")
    assert parked["headers"]["ratelimit"] == own
    assert marker_among(parked["headers"]) == MARKER
    producer = Published()
    publish(producer, parked, 0.0, {"copy": 1, "lot": ("a", "b"), "id": "1", "since": 1})
    assert producer.headers["ratelimit"] == own
    assert marker_among(producer.headers)["copy"] == 1
    back = parcel_of(a_request(**producer.headers), "celery", "")
    assert back["headers"] == request.message.headers


def test_both_versions_read_what_is_published() -> None:
    parked = parcel_of(a_request(), "celery", "celery.throttled")
    producer = Published()
    publish(producer, parked, 0.0, {"copy": 1})
    assert producer.headers["ratelimit"] == producer.headers["celery-ratelimit-return"] == {**MARKER, "copy": 1}


def test_what_the_version_before_has_parked_and_published_is_read() -> None:
    request = a_request(ratelimit=BACK)
    assert marker_in(request.message) == BACK
    again = parcel_of(request, "celery", "celery.throttled")
    assert marker_among(again["headers"]) == BACK
    producer = Published()
    publish(producer, {**again, "headers": {"id": "1", "ratelimit": MARKER}}, 0.0, {"copy": 3})
    assert marker_among(producer.headers) == {**MARKER, "copy": 3}


def test_the_version_before_keeps_one_of_the_two_up_to_date() -> None:
    headers = {"celery-ratelimit-return": {**BACK, "copy": 1}, "ratelimit": {**BACK, "copy": 2}}
    assert marker_among(headers)["copy"] == 2
    assert without_marker(headers)["copy"] == 2
    assert headers == {}


def test_a_message_is_read_once_as_long_as_it_has_the_same_headers() -> None:
    message = a_request(**{"celery-ratelimit-return": BACK}).message
    first = marker_in(message)
    assert first == BACK
    assert marker_in(message) is first
    message.headers = {"id": "1"}
    assert marker_in(message) == {}


def test_a_message_that_nothing_can_be_noted_on_is_read_each_time() -> None:
    """py-amqp's."""

    class Bare:
        __slots__ = ("headers",)

    message = Bare()
    message.headers = {"celery-ratelimit-return": BACK}
    assert marker_in(message) == marker_in(message) == BACK
