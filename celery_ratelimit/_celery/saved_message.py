"""A message outside the broker: made from a received one, and published again as it was."""

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
    "copy_in",
    "expires_at",
    "marker_in",
    "marker_in_headers",
    "parcel_in",
    "parcel_of",
    "publish_all",
    "set_countdown",
    "survivor_in",
    "with_survivor",
    "without_marker",
]

#: The header of a message that is sent back, the marker: what to restore when its task starts.
RETURN_HEADER = "celery-ratelimit-return"
#: The header of a coalesced message: the id of the task that runs in its place, in any worker.
SURVIVOR_HEADER = "celery-ratelimit-survivor"
#: The header of a message that was handed back to its queue: which copy of which parked task it is.
COPY_HEADER = "celery-ratelimit-copy"

#: The fields that each marker has, and all that one may have.
_ALWAYS = {"queue", "eta", "exchange", "routing_key"}
_ALL = _ALWAYS | {"again", "lot", "id", "copy", "since", "CC", "slot", "wait"}
#: The fields that hold texts (or None, except the queue), and the fields that hold counts.
_TEXTS = frozenset({"queue", "eta", "exchange", "routing_key", "id"})
_COUNTS = frozenset({"copy", "since", "slot", "wait"})

#: Properties that the transport writes anew at every publish.
_TRANSPORT_PROPERTIES = (
    *("delivery_info", "delivery_tag", "body_encoding", "expiration", "priority", "delivery_mode"),
    *("content_type", "content_encoding", "application_headers", "headers"),
)

#: Parameters of a publish. On some brokers a message can have properties of these names.
_PARAMETERS = frozenset(inspect.signature(Producer.publish).parameters)

#: A message outside the broker: plain data.
Parcel = dict[str, Any]


def marker_in_headers(headers: Mapping[str, Any] | None) -> dict[str, Any]:
    """The marker in a message's headers, or in a context made of them; empty if it was not throttled."""
    marker: Any = headers.get(RETURN_HEADER) if isinstance(headers, dict) else None
    return marker if _is_ours(marker) else {}


def without_marker(headers: dict[str, Any]) -> dict[str, Any]:
    """Remove from headers what was added to them here; returns the marker."""
    marker = marker_in_headers(headers)
    if _names_copy(headers.get(COPY_HEADER)):
        del headers[COPY_HEADER]
    if marker:
        del headers[RETURN_HEADER]
    return marker


def marker_in(message: Any) -> dict[str, Any]:
    """The marker of a returned message; empty if it comes from its sender. Read once for a message."""
    headers = message.headers
    read: Any = getattr(message, "ratelimit_marker", None)
    if read is None or read[0] is not headers:
        read = headers, marker_in_headers(headers)
        with suppress(AttributeError):  # py-amqp's own message takes no attributes; kombu makes its message from it
            message.ratelimit_marker = read
    marker: dict[str, Any] = read[1]
    return marker


def copy_in(message: Any) -> dict[str, Any]:
    """Which copy of a parked task a message is: its ``lot``, ``id`` and ``copy``; empty: it was not parked."""
    marker = marker_in(message)
    if "lot" in marker:
        return marker
    named: Any = (message.headers or {}).get(COPY_HEADER)
    return dict(named) if _names_copy(named) else {}


def with_survivor(parcel: Parcel, survivor: str) -> Parcel:
    """Add to a parked parcel the header of the task in whose favour it ends; ``""``: it does not."""
    if survivor:
        parcel["headers"] = {**parcel["headers"], SURVIVOR_HEADER: survivor}
    return parcel


def survivor_in(message: Any) -> str:
    """The id of the task in whose favour a returned message ends; ``""``: it does not."""
    survivor = message.headers.get(SURVIVOR_HEADER) if copy_in(message) else None
    return survivor if isinstance(survivor, str) else ""


def set_countdown(message: Any, seconds_until: Callable[[int], float | None], lead: float) -> float | None:
    """Let a returned message wait in the worker until its slot; returns the seconds, or None if it has no countdown.

    Celery compares ``eta`` with this machine's clock, but another machine has written it: it is written anew, by the
    store's clock. If that is not known, or the message has no slot, the countdown begins with the delivery.
    ``seconds_until`` takes a slot in microseconds of the store's clock; the countdown ends ``lead`` seconds before it.
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


def _is_ours(marker: Any) -> bool:
    """Whether a header is a marker, and not the user's header of the same name."""
    if not isinstance(marker, dict) or not _ALWAYS <= marker.keys() <= _ALL:
        return False
    for name, value in marker.items():
        if name in _TEXTS and value is not None and not isinstance(value, str):
            return False
        if name in _COUNTS and not _is_count(value):
            return False
    return bool(marker["queue"]) and ("lot" not in marker or _names_copy(marker))


def _names_copy(fields: Any) -> bool:
    """Whether the fields name a copy of a message, and are not the user's header of the same name."""
    if not isinstance(fields, dict) or not {"lot", "id", "copy"} <= fields.keys():
        return False
    lot = fields["lot"]
    if not isinstance(lot, (list, tuple)) or len(lot) != 2:
        return False
    name, key = lot
    are_texts = isinstance(name, str) and isinstance(key, str) and isinstance(fields["id"], str)
    return are_texts and _is_count(fields["copy"])


def _is_count(number: Any) -> bool:
    return type(number) is int and 0 <= number < 2**53  # True is no count


def parcel_of(request: Any, queue: str, return_queue: str, id: str = "") -> Parcel:
    """A request's message, to ``return_queue``; or, if that is ``""``, as it was sent, to ``queue``.

    ``id``: the id by which the store knows it.
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
            **copy_in(message),
        }
        if "CC" in headers and not marker:
            first["CC"] = headers.pop("CC")
        headers[RETURN_HEADER] = marker or first
    elif marker:
        headers["eta"] = marker.get("eta")
    return _parcel(message, return_queue or queue, headers, expires_at(request))


def parcel_in(message: Any) -> Parcel:
    """A returned message, with its marker."""
    headers = dict(message.headers)
    try:
        expires = datetime.fromisoformat(headers["expires"]).timestamp()
    except (KeyError, TypeError, ValueError):
        expires = None
    return _parcel(message, marker_in(message)["queue"], headers, expires)


def as_sent(parcel: Parcel, copy: Mapping[str, Any] | None = None) -> Parcel:
    """A parked or returned message as its sender sent it, to its own queue; with a header for ``copy``, which it is."""
    headers = dict(parcel["headers"])
    marker = without_marker(headers)
    headers["eta"] = marker.get("eta")
    if "CC" in marker:
        headers["CC"] = marker["CC"]
    if copy and "lot" in copy:
        headers[COPY_HEADER] = {"lot": list(copy["lot"]), "id": copy["id"], "copy": copy["copy"]}
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
    """Publish messages, where kombu can (5.7, on Redis) in one batch. If it fails, any number of them was published."""
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
    """Publish a message to its queue, with a countdown of ``delay`` seconds; ``options`` are for the transport.

    ``marker`` is added to its marker, ``delay`` as ``wait``, in microseconds. Workers go by the marker, whatever this
    machine's clock says (:func:`set_countdown`), and by ``eta`` where they run without the gate. Its time to live is
    counted from now.
    """
    headers = dict(parcel["headers"])
    before = marker_in_headers(headers)
    if before:
        # Not the ones of an earlier return.
        kept = {name: value for name, value in before.items() if name not in ("slot", "wait")}
        wait = {"wait": round(delay * 1e6)} if delay > 0 else {}
        headers[RETURN_HEADER] = {**kept, **(marker or {}), **wait}
        headers["eta"] = (datetime.now(timezone.utc) + timedelta(seconds=delay)).isoformat() if delay > 0 else None
    if _on_amqp(producer):
        headers.pop("CC", None)  # RabbitMQ would send it to the CC queues once more
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
    """The properties that a publisher may set: RabbitMQ closes the channel on the ``user_id`` of another user."""
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
    """The priority as kombu reads it; None if it is no number: kombu would find no queue for it."""
    try:
        return int(given)
    except (TypeError, ValueError, OverflowError):
        return None


def expires_at(request: Any) -> float | None:
    """When a task expires, in seconds since the epoch; None: never."""
    at = request.expires
    if at is None:
        return None
    return float((at if at.tzinfo else at.replace(tzinfo=request.tzlocal)).timestamp())
