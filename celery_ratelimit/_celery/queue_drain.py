"""Takes messages out of a queue, to put them elsewhere.

What is relied on; line numbers are of kombu 5.7.0:

* ``Queue.queue_declare(passive=True)`` (kombu/entity.py 637) raises one of the connection's ``channel_errors`` where
  there is no such queue, on Redis as well (kombu/transport/virtual/base.py 537); on AMQP it closes the channel.
* ``Queue.get`` (entity.py 690): a message that is not acknowledged is given back when its channel is closed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kombu import Queue

__all__ = ["messages_in", "taken_from"]


def messages_in(connection: Any, queue: str) -> int:
    """How many messages of a queue no consumer has; none if there is no such queue."""
    channel = connection.channel()
    try:
        return int(Queue(queue).bind(channel).queue_declare(passive=True).message_count)
    except connection.channel_errors:
        return 0
    finally:
        if channel.connection is not None:
            channel.close()


@contextmanager
def taken_from(connection: Any, queue: str, most: int) -> Iterator[list[Any]]:
    """Up to ``most`` messages of a queue; what is not acknowledged at the end of the block is in it again."""
    channel = connection.channel()
    try:
        bound = Queue(queue).bind(channel)
        messages: list[Any] = []
        while len(messages) < most and (message := bound.get()) is not None:
            messages.append(message)
        yield messages
    finally:
        channel.close()
