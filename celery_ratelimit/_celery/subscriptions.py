"""Queues that a worker does not consume for now: their messages stay in the broker.

What is relied on; line numbers are of Celery and kombu 5.7.0:

* ``Consumer.task_consumer`` and ``app.amqp.queues.consume_from`` (celery/worker/consumer/consumer.py): what the worker
  consumes, and whether it was cancelled.
* kombu ends a queue's consumption, where it is told so while a message of it is handled, at the end of that
  (kombu/transport/redis.py 1325).
"""

from __future__ import annotations

from typing import Any

from .broker import Broker
from .return_names import ReturnNames

__all__ = ["Subscriptions"]


class Subscriptions:
    """Stops and starts consuming single queues.

    Args:
        consumer: Celery's.
        broker: its broker.
        names: of the queues that it consumes.
    """

    def __init__(self, consumer: Any, broker: Broker, names: ReturnNames) -> None:
        self._consumer, self._broker, self._names = consumer, broker, names

    def may_pause_queue(self, queue: str) -> bool:
        """Not a queue that would be deleted then, with what is in it."""
        found = self._names.queues.get(queue)
        return found is None or not found.auto_delete

    def pause_queue(self, queue: str) -> None:
        """Leave the messages of a queue in the broker from now on.

        To be called while a message of it is handled: then nothing is being asked of the broker, and kombu delays it to
        the end of that, so that none comes in that would not be taken; or when the prefetch is full.
        """
        if (
            self._broker.no_event_loop and self._broker.on_amqp
        ):  # a task whose own countdown has ended comes by another thread
            self._consumer.call_soon(self._consumer.task_consumer.pause_queue, queue)
        else:
            self._consumer.task_consumer.pause_queue(queue)

    def resume_queue(self, queue: str) -> None:
        """Undo :meth:`pause_queue`, unless the queue was cancelled meanwhile."""
        if self._broker.no_event_loop:  # the thread that reads from the broker has to do it
            self._consumer.call_soon(self._resume, queue)
        else:
            self._resume(queue)

    def _resume(self, queue: str) -> None:
        consumer, queues = self._consumer.task_consumer, self._consumer.app.amqp.queues
        if queue in queues.consume_from and not consumer.consuming_from(queue):
            consumer.add_queue(queues[queue])
            consumer.consume()
