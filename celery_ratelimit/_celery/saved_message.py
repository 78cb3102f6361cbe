"""A message as it is kept while it is not at the broker: made of one that was received, published again as it was."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from datetime import datetime, timedelta, timezone
from typing import Any

from kombu import Producer

__all__ = [
    "Parcel",
    "as_sent",
    "expires_at",
    "marker_among",
    "marker_in",
    "parcel_in",
    "parcel_of",
    "publish_all",
    "set_countdown",
    "survivor_in",
    "unconfirmed_parks_in",
    "with_survivor",
    "without_marker",
]

#: The header that a message carries while it is sent back: what to restore when its task starts.
RETURN_HEADER = "celery-ratelimit-return"

#: The header of a message in whose place another one waits: the task's id of that. Other workers run the task.
SURVIVOR_HEADER = "celery-ratelimit-survivor"

#: What a marker says in any case, and what it may say.
_ALWAYS = {"queue", "eta", "exchange", "routing_key"}
_ALL = _ALWAYS | {"again", "lot", "id", "copy", "since", "CC", "slot", "wait"}
#: The ones that are texts, if they are there.
_TEXTS = ("eta", "exchange", "routing_key", "id")

#: Properties that the transport writes anew at every publish.
_TRANSPORT_PROPERTIES = (
    *("delivery_info", "delivery_tag", "body_encoding", "expiration", "priority", "delivery_mode"),
    *("content_type", "content_encoding", "application_headers", "headers"),
)

#: What a producer is told how to publish by. On some brokers a message can have properties of any name.
_PARAMETERS = frozenset(inspect.signature(Producer.publish).parameters)

#: A message as it is kept while it is not at the broker: plain data.
Parcel = dict[str, Any]


def marker_among(headers: Mapping[str, Any] | None) -> dict[str, Any]:
    """The marker in these headers, or in what was made of them; nothing if the message has not been throttled."""
    marker: Any = headers.get(RETURN_HEADER) if isinstance(headers, dict) else None
    return marker if _is_ours(marker) else {}


def without_marker(headers: dict[str, Any]) -> dict[str, Any]:
    """Take the marker out of headers; returns it."""
    marker = marker_among(headers)
    if marker:
        del headers[RETURN_HEADER]
    return marker


def marker_in(message: Any) -> dict[str, Any]:
    """What a message that has come back says of itself; nothing if it comes from its sender.

    Read once: a worker asks a dozen times of each message.
    """
    headers = message.headers
    read: Any = getattr(message, "ratelimit_marker", None)
    if read is None or read[0] is not headers:
        read = headers, marker_among(headers)
        with suppress(AttributeError):  # py-amqp's own has no room for it: kombu makes its message of that
            message.ratelimit_marker = read
    marker: dict[str, Any] = read[1]
    return marker


def with_survivor(parcel: Parcel) -> Parcel:
    """A parcel that was parked, as it is published: it says in whose favour it ends, if it does."""
    if isinstance(parcel.get("by"), str):
        parcel["headers"] = {**parcel["headers"], SURVIVOR_HEADER: parcel["by"]}
    return parcel


def survivor_in(message: Any) -> str:
    """The task in whose favour a message ends that has come back; nothing if it does not."""
    survivor = message.headers.get(SURVIVOR_HEADER) if marker_in(message) else None
    return survivor if isinstance(survivor, str) else ""


def set_countdown(message: Any, seconds_until: Callable[[int], float | None], lead: float) -> float | None:
    """Make a returning message wait here until its slot; returns the seconds, or None if it has no countdown.

    Celery compares ``eta`` with this machine's clock, and another machine has written it: it is written anew, by the
    store's clock. Where that is not known, or the message has no slot, the countdown begins with the delivery.

    Args:
        message: the message, before Celery reads its ``eta``.
        seconds_until: tells the seconds until a slot, which is given in microseconds by the store's clock.
        lead: seconds before its slot at which the countdown ends.
    """
    marker = marker_in(message)
    if not marker or not message.headers.get("eta"):
        return None
    wait: float = marker.get("wait", 0) / 1e6
    until = seconds_until(marker["slot"]) if "slot" in marker else None
    # A store's clock that was set back makes no task wait for longer.
    seconds = wait if until is None else min(wait, until - lead)
    at = datetime.now(timezone.utc) + timedelta(seconds=seconds)
    message.headers["eta"] = at.isoformat() if seconds > 0 else None
    return seconds


def unconfirmed_parks_in(message: Any) -> int:
    """How often a message was sent anew because the store did not say whether it was parked."""
    again = marker_in(message).get("again", 0)
    return again if _is_count(again) else 0


def _is_ours(marker: Any) -> bool:
    """Whether a header is a marker of ours, and not a header of the user's under the same name."""
    if not isinstance(marker, dict) or not _ALWAYS <= marker.keys() <= _ALL:
        return False
    if not isinstance(marker["queue"], str) or not marker["queue"]:
        return False
    for name in _TEXTS:
        text = marker.get(name)
        if text is not None and not isinstance(text, str):
            return False
    if not all(_is_count(marker.get(name, 0)) for name in ("copy", "since", "slot", "wait")):
        return False
    if "lot" not in marker:
        return True
    lot = marker["lot"]
    a_pair = isinstance(lot, (list, tuple)) and len(lot) == 2 and all(isinstance(part, str) for part in lot)
    return a_pair and {"id", "copy"} <= marker.keys() and marker["id"] is not None


def _is_count(number: Any) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and 0 <= number < 2**53


def parcel_of(request: Any, queue: str, return_queue: str, id: str = "") -> Parcel:
    """A request's whole message, and where it goes: to ``return_queue``; if that is ``""``, to ``queue`` as it was.

    ``id``: what the store knows it by.
    """
    message = request.message
    headers = dict(message.headers)
    marker = without_marker(headers)
    if return_queue:
        first = {
            "queue": queue,
            "eta": headers.get("eta"),
            "exchange": request.delivery_info.get("exchange"),
            "routing_key": request.delivery_info.get("routing_key"),
            **({"id": id} if id else {}),
        }
        if "CC" in headers and not marker:
            first["CC"] = headers.pop("CC")
        headers[RETURN_HEADER] = marker or first
    elif marker:
        headers["eta"] = marker.get("eta")
    return _parcel(message, return_queue or queue, headers, expires_at(request))


def parcel_in(message: Any) -> Parcel:
    """A message that has come back, as it is, whole."""
    headers = dict(message.headers)
    try:
        expires = datetime.fromisoformat(headers["expires"]).timestamp()
    except (KeyError, TypeError, ValueError):
        expires = None
    return _parcel(message, marker_in(message)["queue"], headers, expires)


def as_sent(parcel: Parcel) -> Parcel:
    """A message that was parked, or has come back, to the queue that it was sent to, and without a trace of ours."""
    headers = dict(parcel["headers"])
    marker = without_marker(headers)
    headers["eta"] = marker.get("eta")
    if "CC" in marker:
        headers["CC"] = marker["CC"]
    return {**parcel, "to": marker["queue"], "headers": headers}


def _parcel(message: Any, to: str, headers: dict[str, Any], expires: float | None) -> Parcel:
    properties = dict(message.properties or {})
    options = {name: properties.pop(name, None) for name in _TRANSPORT_PROPERTIES}
    return {
        "to": to,
        "body": message.body if isinstance(message.body, str) else bytes(message.body),
        "content_type": message.content_type,
        "content_encoding": message.content_encoding,
        "compression": headers.pop("compression", None),  # the body was decompressed when it arrived
        "headers": headers,
        "priority": options["priority"],
        "delivery_mode": options["delivery_mode"],
        "expires": expires if options["expiration"] is not None else None,
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

    ``marker`` is added to what the one in its headers says; ``delay`` as ``wait``, in microseconds. Workers go by the
    marker, whatever this machine's clock says (:func:`set_countdown`), and by ``eta`` where they are without the gate.
    Its own time to live is counted from its publishing.
    """
    headers = dict(parcel["headers"])
    before = marker_among(headers)
    if before:
        # Not the ones of an earlier return.
        kept = {name: value for name, value in before.items() if name not in ("slot", "wait")}
        wait = {"wait": round(delay * 1e6)} if delay > 0 else {}
        headers[RETURN_HEADER] = {**kept, **(marker or {}), **wait}
        headers["eta"] = (datetime.now(timezone.utc) + timedelta(seconds=delay)).isoformat() if delay > 0 else None
    if _on_amqp(producer):
        headers.pop("CC", None)  # RabbitMQ would send it to those queues once more
    expires = parcel["expires"]
    producer.publish(
        parcel["body"],
        exchange="",
        routing_key=parcel["to"],
        content_type=parcel["content_type"],
        content_encoding=parcel["content_encoding"],
        compression=parcel["compression"],
        headers=headers,
        priority=_priority(parcel["priority"]),
        delivery_mode=parcel["delivery_mode"] if parcel["delivery_mode"] in (1, 2) else None,
        expiration=None if expires is None else max(0.001, expires - time.time()),
        **_properties(producer, parcel["properties"]),
        **options,
    )


def _properties(producer: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """The properties that a publisher may set.

    RabbitMQ closes the channel on a ``user_id`` that is not the publisher's: it was the sender's.
    """
    properties = {name: value for name, value in given.items() if name not in _PARAMETERS}
    if "user_id" in properties and _on_amqp(producer):
        connection = producer.connection
        ours = connection.userid or getattr(connection.transport, "default_connection_params", {}).get("userid")
        if properties["user_id"] != ours:
            del properties["user_id"]
    return properties


def _on_amqp(producer: Any) -> bool:
    connection = producer.connection
    return connection is not None and connection.transport.driver_type == "amqp"


def _priority(given: Any) -> int | None:
    """As kombu reads it; of what is no number at all it would not know which queue it means."""
    try:
        return int(given)
    except (TypeError, ValueError, OverflowError):
        return None


def expires_at(request: Any) -> float | None:
    """When a task expires, in seconds since 1970; None: never."""
    at = request.expires
    if at is None:
        return None
    return float((at if at.tzinfo else at.replace(tzinfo=request.tzlocal)).timestamp())
