"""Publishes messages that were outside the broker as they were: by their return queues, or to their own ones."""

from __future__ import annotations

import inspect
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from datetime import datetime, timedelta, timezone
from typing import Any

from kombu import Producer

from .saved_message import RETURN_HEADER, Parcel, marker_in_headers

__all__ = ["publish", "publish_all"]

#: Parameters of a publish. On some brokers a message can have properties of these names.
_PARAMETERS = frozenset(inspect.signature(Producer.publish).parameters)
#: Properties for one publish to SQS: of two messages with one deduplication id within five minutes it keeps the first
#: one, which is acknowledged here; and the delay is over. kombu makes another id (kombu/transport/SQS/__init__.py 668).
_OF_ONE_PUBLISH = frozenset({"MessageDeduplicationId", "DelaySeconds", "delay_seconds"})


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

    By an exchange it has the routing key that it was sent with.
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
    exchange, key = parcel.get("exchange", ""), parcel["to"]
    if exchange:  # a fanout, which does not go by these
        key = before["routing_key"] or ""
        headers.update({"CC": before["CC"]} if "CC" in before else {})
    elif _on_amqp(producer):
        headers.pop("CC", None)  # RabbitMQ would send it to the CC queues once more
    expires = parcel["expires"]
    producer.publish(
        parcel["body"],
        exchange=exchange,
        routing_key=key,
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
    properties = {name: value for name, value in given.items() if name not in _PARAMETERS | _OF_ONE_PUBLISH}
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
