"""A message outside the broker, made from a received one. :mod:`.publish_again` publishes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from typing import Any, NamedTuple

__all__ = [
    "DELIVERY_COUNTS",
    "REDELIVERED_HEADER",
    "RETURN_HEADER",
    "THROTTLES_HEADER",
    "Parcel",
    "ReturnAddress",
    "as_sent",
    "copy_in",
    "count_upstream_throttle",
    "expires_at",
    "marker_in",
    "marker_in_headers",
    "parcel_in",
    "parcel_of",
    "set_countdown",
    "survivor_in",
    "upstream_throttles_in",
    "with_survivor",
    "without_marker",
]

#: The header of a message that is sent back, the marker: what to restore when its task starts.
RETURN_HEADER = "celery-ratelimit-return"
#: The header of a coalesced message: the id of the task that runs in its place, in any worker.
SURVIVOR_HEADER = "celery-ratelimit-survivor"
#: The header of a message that was handed back to its queue: which copy of which parked task it is.
COPY_HEADER = "celery-ratelimit-copy"
#: The header of a message whose task was put back because its upstream refused its call: how often that was.
THROTTLES_HEADER = "celery-ratelimit-upstream-throttles"
#: The header, ``True``, of a message that the broker had delivered before. Published anew, it does not say so itself.
REDELIVERED_HEADER = "celery-ratelimit-redelivered"

#: The headers in which a quorum queue says how often it has delivered a message (the second since RabbitMQ 4.3).
DELIVERY_COUNTS = ("x-delivery-count", "x-acquired-count")

#: The fields that each marker has, and all that one may have.
_ALWAYS = {"queue", "eta", "exchange", "routing_key"}
_ALL = _ALWAYS | {"again", "lot", "id", "copy", "since", "CC", "slot", "wait", "deadline"}
#: The fields that hold texts (or None, except the queue), and the fields that hold counts.
_TEXTS = frozenset({"queue", "eta", "exchange", "routing_key", "id"})
_COUNTS = frozenset({"copy", "since", "slot", "wait", "deadline"})

#: Properties that the transport writes anew at every publish.
_TRANSPORT_PROPERTIES = (
    *("delivery_info", "delivery_tag", "body_encoding", "expiration", "priority", "delivery_mode"),
    *("content_type", "content_encoding", "application_headers", "headers"),
)

#: A message outside the broker: plain data
Parcel = dict[str, Any]


class ReturnAddress(NamedTuple):
    """Where the throttled tasks of a queue return: ``exchange`` takes them there with any routing key, if there is one.

    ``ttl``: seconds for which the broker keeps a message of the queue that no worker takes; ``None``: for ever.
    """

    queue: str
    exchange: str = ""
    ttl: float | None = None


def marker_in_headers(headers: Mapping[str, Any] | None) -> dict[str, Any]:
    """The marker in a message's headers, or in a context made of them; empty if it was not throttled."""
    marker: Any = headers.get(RETURN_HEADER) if isinstance(headers, dict) else None
    return marker if _is_ours(marker) else {}


def without_marker(headers: dict[str, Any]) -> dict[str, Any]:
    """Remove from headers what was added to them here; returns the marker."""
    marker = marker_in_headers(headers)
    if _names_copy(headers.get(COPY_HEADER)):
        del headers[COPY_HEADER]
    if upstream_throttles_in(headers):
        del headers[THROTTLES_HEADER]
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


def upstream_throttles_in(headers: Mapping[str, Any] | None) -> int:
    """How often a task was put back because its upstream refused its call, by its message's headers."""
    number = (headers or {}).get(THROTTLES_HEADER)
    return number if type(number) is int and number > 0 else 0


def count_upstream_throttle(message: Any) -> None:
    """Count that a message's task is put back because its upstream refused its call."""
    message.headers[THROTTLES_HEADER] = upstream_throttles_in(message.headers) + 1


def with_survivor(parcel: Parcel, survivor: str) -> Parcel:
    """Add to a parked parcel the header of the task in whose favour it ends; ``""``: it does not."""
    if survivor:
        parcel["headers"] = {**parcel["headers"], SURVIVOR_HEADER: survivor}
    return parcel


def survivor_in(message: Any) -> str:
    """The id of the task in whose favour a returned message ends; ``""``: it does not."""
    survivor = message.headers.get(SURVIVOR_HEADER) if copy_in(message) else None
    return survivor if isinstance(survivor, str) else ""


def set_countdown(
    message: Any, seconds_until: Callable[[int], float | None], lead: float, max_hold: Callable[[str], float]
) -> float | None:
    """Let a returned message wait in the worker until its slot; returns the seconds, or None if it has no countdown.

    Celery compares ``eta`` with this machine's clock, but another machine has written it: it is written anew, by the
    store's clock. If that is not known, or the message has no slot, the countdown begins with the delivery.
    ``seconds_until`` takes a slot in microseconds of the store's clock; the countdown ends ``lead`` seconds before it.
    ``max_hold``: the most seconds of a countdown, by queue; what had sent the message back may not have known it.
    """
    marker = marker_in(message)
    if not marker or not message.headers.get("eta"):
        return None
    wait: float = marker.get("wait", 0) / 1e6
    until = seconds_until(marker["slot"]) if "slot" in marker else None
    # A store's clock that was set back makes no task wait for longer.
    seconds = min(wait, wait if until is None else until - lead, max_hold(marker["queue"]))
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
    is_delivered = len(str(marker["routing_key"]).encode(errors="replace")) <= 255  # else RabbitMQ's client ends
    return bool(marker["queue"]) and is_delivered and ("lot" not in marker or _names_copy(marker))


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


def parcel_of(
    request: Any, queue: str, back: ReturnAddress | None, id: str = "", deadline: int | None = None
) -> Parcel:
    """A request's message, to its return queue; or, if ``back`` is ``None``, as it was sent, to ``queue``.

    ``id``: the id by which the store knows it; ``deadline``: microseconds since 1970 after which it does not run.
    """
    message = request.message
    headers = dict(message.headers)
    marker = without_marker(headers)
    if back:
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
        kept = {name: value for name, value in (marker or first).items() if name != "deadline"}
        headers[RETURN_HEADER] = kept if deadline is None else {**kept, "deadline": deadline}
        if throttles := upstream_throttles_in(message.headers):
            headers[THROTTLES_HEADER] = throttles
    elif marker:
        headers["eta"] = marker.get("eta")
    parcel = _parcel(message, back.queue if back else queue, headers, expires_at(request))
    return {**parcel, "exchange": back.exchange if back else ""}


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
    return {**parcel, "to": marker["queue"], "exchange": "", "headers": headers}


def _parcel(message: Any, to: str, headers: dict[str, Any], expires: float | None) -> Parcel:
    properties = dict(message.properties or {})
    options = {name: properties.pop(name, None) for name in _TRANSPORT_PROPERTIES}
    headers = {name: value for name, value in headers.items() if name not in DELIVERY_COUNTS}
    if (message.delivery_info or {}).get("redelivered"):
        headers[REDELIVERED_HEADER] = True
    return {
        "to": to,
        "body": message.body if isinstance(message.body, str) else bytes(message.body),
        "content_type": message.content_type,
        "content_encoding": message.content_encoding,
        "compression": headers.pop("compression", None),  # the body was decompressed when it arrived
        "headers": headers,
        "priority": options["priority"],
        "delivery_mode": options["delivery_mode"],
        "expires": _first(
            expires if options["expiration"] is not None else None, marker_in_headers(headers).get("deadline")
        ),
        "properties": properties,
    }


def expires_at(request: Any, deadline: int | None = None) -> float | None:
    """When a task expires, or its deadline is if that is sooner, in seconds since the epoch; None: never."""
    at = request.expires
    if at is not None:
        at = float((at if at.tzinfo else at.replace(tzinfo=request.tzlocal)).timestamp())
    return _first(at, deadline)


def _first(expires: float | None, deadline: int | None) -> float | None:
    return min([each for each in (expires, deadline and deadline / 1e6) if each is not None], default=None)
