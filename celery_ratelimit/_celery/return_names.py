"""The names of return queues, and how they are declared.

What is relied on; line numbers are of Celery 5.7.0:

* ``worker_direct`` is a durable queue of one worker, bound to ``WORKER_DIRECT_EXCHANGE`` (celery/utils/nodenames.py
  14).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celery.utils.nodenames import WORKER_DIRECT_EXCHANGE
from kombu import Queue

__all__ = ["ReturnNames", "declared_like"]


class ReturnNames:
    """The names of one worker's return queues.

    Attributes:
        queues: the queues that the worker consumes for tasks, by name, also paused ones.
        make_name: the return queue's name, by the name of its queue.
    """

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self.make_name: Callable[[str], str] = str
        self.queues: dict[str, Queue] = {}

    def name_for(self, queue: str) -> str:
        """The queue by which throttled tasks of ``queue`` return.

        A queue of one worker (exclusive, auto-deleted, ``worker_direct``) is its own return queue: another one would be
        left behind by each worker that there ever was.
        """
        found = self.queues.get(queue) or self._consumer.app.amqp.queues.get(queue)
        if found is not None and _belongs_to_one_worker(found) and self._is_reached_by_name(found):
            return queue
        return self.make_name(queue)

    def _is_reached_by_name(self, queue: Queue) -> bool:
        """Whether a message reaches a queue by its name: a fanout exchange's only on AMQP.

        On Redis the other name is that of a list, and nothing is left of an empty one.
        """
        return bool(getattr(queue.exchange, "type", None) != "fanout" or self.on_amqp)

    @property
    def on_amqp(self) -> bool:
        """Whether the broker sends messages unasked."""
        return bool(self._consumer.conninfo.transport.driver_type == "amqp")

    def origin_of(self, name: str) -> str:
        """The queue whose return queue is ``name``; ``name`` itself, if it is no return queue."""
        return next((queue for queue in self.queues if self.name_for(queue) == name), name)

    def declaration(self, name: str) -> Queue | None:
        """The declaration of a queue by which this worker's tasks return; None: of another worker's."""
        for queue in self.queues.values():
            if self.name_for(queue.name) == name:
                return queue if queue.name == name else declared_like(queue, name)
        return None


def _belongs_to_one_worker(queue: Queue) -> bool:
    return bool(queue.exclusive or queue.auto_delete or queue.exchange == WORKER_DIRECT_EXCHANGE)


def declared_like(queue: Queue, name: str) -> Queue:
    """A queue with the arguments of another one, and no binding: messages are published to it by its name."""
    return Queue(name, durable=queue.durable, queue_arguments=queue.queue_arguments, max_priority=queue.max_priority)
