"""The order in which a broker delivers messages of different priorities (``broker_order``)."""

from __future__ import annotations

from typing import Any

import pytest
import redis
from kombu import Connection, Producer, Queue

from celery_ratelimit._celery.message_fields import broker_order
from celery_ratelimit.testing import EmbeddedServer
from tests.rabbitmq import Broker


def received(connection: Connection, queue: Queue, priority: Any) -> Any:
    """A message as it comes."""
    with connection.channel() as channel:
        bound = queue(channel)
        Producer(channel).publish("{}", routing_key=queue.name, declare=[bound], priority=priority)
        message = bound.get(no_ack=True)
        while message is None:
            message = bound.get(no_ack=True)
    return message


@pytest.mark.parametrize(
    ("steps", "priority", "order"),
    [
        (None, None, 0),
        (None, 0, 0),
        (None, 2, 0),
        (None, 3, 3),
        (None, 8, 6),
        (None, 9, 9),
        (None, 200, 9),
        ([0, 1, 2], 2, 2),
        ([0], 9, 0),
    ],
)
def test_priority_order_on_redis(
    server: EmbeddedServer, store: redis.Redis, steps: list[int] | None, priority: int | None, order: int
) -> None:
    options = {"priority_steps": steps} if steps else {}
    with Connection(server.url, transport_options=options) as connection:
        queue = Queue("tasks")
        assert broker_order(received(connection, queue, priority), queue) == order


@pytest.mark.parametrize("by_arguments", [False, True])
@pytest.mark.parametrize(("priority", "order"), [(None, 0), (0, 0), (3, -3), (9, -5)])
def test_priority_order_on_rabbitmq(broker: Broker, priority: int | None, order: int, by_arguments: bool) -> None:
    five: dict[str, Any] = {"queue_arguments": {"x-max-priority": 5}} if by_arguments else {"max_priority": 5}
    with Connection(broker.url) as connection:
        queue = Queue("tasks", **five)
        message = received(connection, queue, priority)
        assert broker_order(message, queue) == order
        assert broker_order(message, Queue("tasks")) == 0, "it has no priorities"
        assert broker_order(message, None) == 0
