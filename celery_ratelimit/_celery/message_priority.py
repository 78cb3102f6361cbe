"""A message's own priority, in its broker's sense.

What is relied on; line numbers are of kombu 5.7.0:

* On Redis the lowest number goes first, and a queue is a list for each of the ``priority_steps``
  (kombu/transport/redis.py 1671); what a message says is read by ``_get_message_priority`` (virtual/base.py 857).
* On RabbitMQ the highest number goes first, up to the ``x-max-priority`` of a classic queue; a queue without that has
  none. ``kombu.Queue`` has it as ``max_priority``, or among its ``queue_arguments``.
"""

from __future__ import annotations

from typing import Any

import amqp
from celery import Celery

from .message_key import RedisQoS

__all__ = ["MOST_IMPORTANT", "lowest_first", "order_of", "priority_of"]

#: What RabbitMQ takes at the most.
MOST_IMPORTANT = 255


def order_of(message: Any, queue: Any) -> int:
    """How many steps the broker puts a message behind messages without a priority; below zero: before them.

    Args:
        message: as it was received.
        queue: the queue that it was sent to, as it is declared; ``None``: that is not known.
    """
    channel = message.channel
    if isinstance(getattr(channel, "qos", None), RedisQoS):
        step: int = channel.priority(channel._get_message_priority({"properties": message.properties}))
        return step
    if queue is None or not isinstance(channel, amqp.Channel):
        return 0
    most = queue.max_priority or (queue.queue_arguments or {}).get("x-max-priority") or 0
    return -max(0, min(_number(message.properties.get("priority")), _number(most), MOST_IMPORTANT))


def lowest_first(app: Celery) -> bool:
    """Whether the lowest number goes first at an app's broker: everywhere but on RabbitMQ. Does not connect."""
    with app.connection_for_write() as connection:
        return bool(connection.transport.driver_type != "amqp")


def priority_of(given: Any) -> int:
    """The number that a message was sent with: its ``priority``; 0 where there is none, as on either broker."""
    return max(0, min(_number(given), MOST_IMPORTANT))


def _number(given: Any) -> int:
    try:
        return int(given)
    except (TypeError, ValueError, OverflowError):
        return 0
