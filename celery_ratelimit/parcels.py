"""A message as it is kept while it is not at the broker: made of one that was received, published again as it was."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from datetime import datetime, timedelta, timezone
from typing import Any

from kombu import Producer

__all__ = ["Parcel", "expires_at", "marker_among", "marker_in", "parcel_of", "publish_all", "without_marker"]

#: The header that a message carries while it is sent back: what to restore when its task starts.
RETURN_HEADER = "celery-ratelimit-return"

#: Its name in 0.1, whose workers may be in the same fleet: it is written as well, unless the user has one of that name,
#: and it is what both keep up to date.
OLD_HEADER = "ratelimit"

#: What a marker says in any case, and what it may say.
_ALWAYS = {"queue", "eta", "exchange", "routing_key"}
_AT_TIMES = {"again", "lot", "id", "copy", "since"}

#: Properties that the transport writes anew at every publish.
_TRANSPORT_PROPERTIES = (
    *("delivery_info", "delivery_tag", "body_encoding", "expiration", "priority", "delivery_mode"),
    *("content_type", "content_encoding", "application_headers", "headers"),
)

#: A message as it is kept while it is not at the broker: plain data.
Parcel = dict[str, Any]


def _is_ours(header: Any) -> bool:
    """Whether a header is a marker, and not one of the user's under the same name."""
    return isinstance(header, dict) and header.keys() >= _ALWAYS and header.keys() <= _ALWAYS | _AT_TIMES


def marker_among(headers: Mapping[str, Any] | None) -> dict[str, Any]:
    """What a message with these headers, or what was made of them, says of its coming back; nothing if it does not."""
    for name in (OLD_HEADER, RETURN_HEADER):
        marker = (headers or {}).get(name)
        if isinstance(marker, dict) and _is_ours(marker):
            return marker
    return {}


def without_marker(headers: dict[str, Any]) -> dict[str, Any]:
    """Take the marker out of headers; returns it."""
    marker = marker_among(headers)
    for name in (OLD_HEADER, RETURN_HEADER):
        if _is_ours(headers.get(name)):
            del headers[name]
    return marker


def marker_in(message: Any) -> dict[str, Any]:
    """What a message that has come back says of itself; nothing if it comes from its sender."""
    return marker_among(message.headers)


def _mark(headers: dict[str, Any], marker: Mapping[str, Any]) -> None:
    headers[RETURN_HEADER] = marker
    if OLD_HEADER not in headers or _is_ours(headers[OLD_HEADER]):
        headers[OLD_HEADER] = marker


def parcel_of(request: Any, queue: str, return_queue: str) -> Parcel:
    """A request's whole message, and where it goes: to ``return_queue``; if that is ``""``, to ``queue`` as it was."""
    message = request.message
    headers = dict(message.headers)
    properties = dict(message.properties or {})
    options = {name: properties.pop(name, None) for name in _TRANSPORT_PROPERTIES}
    marker = without_marker(headers)
    if return_queue:
        first = {
            "queue": queue,
            "eta": headers.get("eta"),
            "exchange": request.delivery_info.get("exchange"),
            "routing_key": request.delivery_info.get("routing_key"),
        }
        _mark(headers, marker or first)
    elif marker:
        headers["eta"] = marker.get("eta")
    return {
        "to": return_queue or queue,
        "body": message.body if isinstance(message.body, str) else bytes(message.body),
        "content_type": message.content_type,
        "content_encoding": message.content_encoding,
        "compression": headers.pop("compression", None),  # the body was decompressed when it arrived
        "headers": headers,
        "priority": options["priority"],
        "delivery_mode": options["delivery_mode"],
        "expires": expires_at(request) if options["expiration"] is not None else None,
        "properties": properties,
    }


def publish_all(
    channel: Any, parcels: Sequence[tuple[Parcel, float, Mapping[str, Any]]], *, mandatory: bool = False
) -> None:
    """Publish messages in one go, where kombu can (5.7, on Redis). If that fails, any number of them was published."""
    producer = Producer(channel, auto_declare=False)
    options = {"mandatory": True} if mandatory else {}
    with producer.batch() if hasattr(producer, "batch") else nullcontext():
        for parcel, delay, marker in parcels:
            publish(producer, parcel, delay, marker, **options)


def publish(
    producer: Any,
    parcel: Parcel,
    delay: float = 0.0,
    marker: Mapping[str, Any] | None = None,
    **options: Any,
) -> None:
    """Publish a message to where it goes, to be taken up after ``delay`` seconds; ``options`` are for the transport.

    ``marker`` is added to what the one in its headers says. Its own time to live is counted from its publishing.
    """
    headers = dict(parcel["headers"])
    before = marker_among(headers)
    if before:
        _mark(headers, {**before, **(marker or {})})
        headers["eta"] = (datetime.now(timezone.utc) + timedelta(seconds=delay)).isoformat() if delay > 0 else None
    expires = parcel["expires"]
    producer.publish(
        parcel["body"],
        exchange="",
        routing_key=parcel["to"],
        content_type=parcel["content_type"],
        content_encoding=parcel["content_encoding"],
        compression=parcel["compression"],
        headers=headers,
        priority=parcel["priority"],
        delivery_mode=parcel["delivery_mode"],
        expiration=None if expires is None else max(0.001, expires - time.time()),
        **parcel["properties"],
        **options,
    )


def expires_at(request: Any) -> float | None:
    """When a task expires, in seconds since 1970; None: never."""
    at = request.expires
    if at is None:
        return None
    return float((at if at.tzinfo else at.replace(tzinfo=request.tzlocal)).timestamp())
