"""What a message tells: its stamps, the id by which the store knows it, and its priority.

A task's id alone does not tell messages apart: a retry, ``self.replace()``, an exchange that copies for several queues
and a sender that uses an id again make several messages of one id. A message that is delivered again is the same.

What is relied on; line numbers are of Celery and kombu 5.7.0:

* ``properties["delivery_tag"]`` of a message on Redis is made for each publish (kombu/transport/virtual/base.py 633)
  and stays when it is delivered once more: all of it is restored (kombu/transport/redis.py 1265).
* The header ``replaced_task_nesting`` (celery/app/task.py 1173, since 5.2).
* On Redis the lowest number goes first, and a queue is a list for each of the ``priority_steps``
  (kombu/transport/redis.py 1671); a message's priority is read by ``_get_message_priority`` (virtual/base.py 857).
* On RabbitMQ the highest number goes first, up to the ``x-max-priority`` of a classic queue; a queue without that has
  none. ``kombu.Queue`` has it as ``max_priority``, or among its ``queue_arguments``.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

import amqp
from celery import Celery
from kombu.transport import virtual

from .saved_message import DELIVERY_COUNTS, copy_in, marker_in

try:
    from kombu.transport.redis import QoS as RedisQoS
except ImportError:  # no redis-py that kombu would take

    class RedisQoS(virtual.QoS):  # type: ignore[no-redef]
        """No message has one."""


__all__ = [
    "RedisQoS",
    "broker_order",
    "lowest_first",
    "nears_delivery_limit",
    "priority_of",
    "stamp",
    "stamp_of",
    "stored_id",
]

#: The highest priority on RabbitMQ.
MAX_PRIORITY = 255


def stamp(message: Any, **stamps: Any) -> None:
    """Stamp a message that comes. On AMQP it is no message of kombu's yet, which keeps this dict (pyamqp.py 119)."""
    (message.delivery_info if isinstance(message, amqp.Message) else vars(message)).update(stamps)


def stamp_of(message: Any, name: str) -> Any:
    """A stamp: ``ratelimit_queue``, ``ratelimit_received_at``, or ``ratelimit_final_states``."""
    return getattr(message, name, None) or (message.delivery_info or {}).get(name)


def nears_delivery_limit(message: Any, queue: Any) -> bool:
    """Whether a quorum queue has counted half of the lost deliveries after which it drops a message; -1: it never does.

    RabbitMQ says in a header how many there were. ``queue`` is the ``kombu.Queue``, if it is known.
    """
    count: Any = (message.headers or {}).get(DELIVERY_COUNTS[0])
    limit = ((queue and queue.queue_arguments) or {}).get("x-delivery-limit", 20)  # RabbitMQ 4's
    return isinstance(count, int) and 0 < limit <= 2 * count


# -- Its id in the store -----------------------------------------------------------------------------------------------


def stored_id(request: Any, queue: str) -> str:
    """The id of a request in the store: ``<task id>[.<retries>]~<of this message alone>@<queue>``.

    It is made once, at the first delivery; a message that returns, or was handed back to its queue, has it in a header.
    """
    marker = marker_in(request.message)
    known = marker.get("id") or copy_in(request.message).get("id")
    if known:
        return str(known)
    retries = request.request_dict.get("retries")
    attempt = f"{request.id}.{retries}" if retries else str(request.id)
    return f"{attempt}~{_message_hash(request)}@{queue}"


def _message_hash(request: Any) -> str:
    """Tells a message from others of the same task id; the same at each delivery.

    Other brokers than Redis: two messages of the same id and arguments are one.
    """
    message = request.message
    tag = (message.properties or {}).get("delivery_tag")
    if tag is not None and isinstance(getattr(message.channel, "qos", None), RedisQoS):
        text = str(tag).encode(errors="surrogatepass")
    else:
        body = message.body
        text = body.encode(errors="surrogatepass") if isinstance(body, str) else bytes(body)
        text += str(request.request_dict.get("replaced_task_nesting") or 0).encode(errors="surrogatepass")
    return blake2b(text, digest_size=5).hexdigest()


# -- Its priority ------------------------------------------------------------------------------------------------------


def broker_order(message: Any, queue: Any) -> int:
    """How many steps the broker puts a message behind messages without a priority; below zero: before them.

    Args:
        queue: the declared queue to which it was sent; ``None``: not known.
    """
    channel = message.channel
    if isinstance(getattr(channel, "qos", None), RedisQoS):
        step: int = channel.priority(channel._get_message_priority({"properties": message.properties}))
        return step
    if queue is None or not isinstance(channel, amqp.Channel):
        return 0
    most = queue.max_priority or (queue.queue_arguments or {}).get("x-max-priority") or 0
    return -max(0, min(_number(message.properties.get("priority")), _number(most), MAX_PRIORITY))


def lowest_first(app: Celery) -> bool:
    """Whether the lowest number goes first at an app's broker: everywhere but on RabbitMQ. Does not connect."""
    with app.connection_for_write() as connection:
        return bool(connection.transport.driver_type != "amqp")


def priority_of(given: Any) -> int:
    """The priority with which a message was sent; 0 where it has none, as on either broker."""
    return max(0, min(_number(given), MAX_PRIORITY))


def _number(given: Any) -> int:
    try:
        return int(given)
    except (TypeError, ValueError, OverflowError):
        return 0
