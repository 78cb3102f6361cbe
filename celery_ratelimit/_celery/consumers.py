"""The worker's kombu consumers: they stamp each message with its queue and time, and return queues follow them.

What is relied on; line numbers are of Celery and kombu 5.7.0:

* ``app.amqp.Consumer`` makes the worker's consumer (celery/app/amqp.py 361; celery/worker/consumer/tasks.py 45).
* ``kombu.Consumer._basic_consume`` (kombu/messaging.py 841): called for each queue whose messages come from then on,
  and the one place that knows on every transport which queue a message comes from. ``cancel_by_queue`` (735) ends that
  for one queue, ``cancel`` (719) for all; both are what Celery calls (consumer.py 728; tasks.py 89).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from .return_consumer import ReturnConsumer

__all__ = ["consumer_classes"]


def consumer_classes(
    base: type, on_message: Callable[[Any], None], return_consumer: ReturnConsumer
) -> tuple[type, type]:
    """Two classes of kombu consumers, which stamp each message and call ``on_message`` with it.

    The second is for the queues of tasks: ``return_consumer`` follows it. A routing key does not name the queue: a
    topic exchange has many queues for one. AMQP gives a consumer tag, Redis nothing.
    """
    base = getattr(base, "ratelimit_base", base)

    class Consumer(base):
        ratelimit_base = base

        def _basic_consume(self, queue: Any, *args: Any, **kwargs: Any) -> Any:
            consume = queue.consume

            def consume_stamped(tag: str, callback: Callable[[Any], Any], **options: Any) -> Any:
                def stamped(message: Any) -> Any:
                    now = time.monotonic()
                    if on_amqp:  # no message of kombu's yet: the one that is made of it keeps this dict (pyamqp.py 119)
                        message.delivery_info.update(ratelimit_queue=queue.name, ratelimit_received_at=now)
                    else:
                        message.ratelimit_queue, message.ratelimit_received_at = queue.name, now
                    on_message(message)
                    return callback(message)

                return consume(tag, stamped, **options)

            on_amqp = self.channel.connection.client.transport.driver_type == "amqp"
            queue.consume = consume_stamped
            try:
                return super()._basic_consume(queue, *args, **kwargs)
            finally:
                del queue.consume

    class TaskConsumer(Consumer):
        def _basic_consume(self, queue: Any, *args: Any, **kwargs: Any) -> Any:
            return_consumer.follow(self, queue)
            return super()._basic_consume(queue, *args, **kwargs)

        def pause_queue(self, queue: str) -> None:
            """Do not consume a queue for now; its return queue is still consumed."""
            super().cancel_by_queue(queue)

        def cancel_by_queue(self, queue: Any) -> None:
            super().cancel_by_queue(queue)
            return_consumer.unfollow(self, getattr(queue, "name", queue))

        def cancel(self) -> None:
            try:
                return_consumer.stop(self)
            finally:
                super().cancel()

        close = cancel

    return Consumer, TaskConsumer
