"""The names of the queues by which throttled tasks come back, and how they are declared.

What is relied on; line numbers are of Celery 5.7.0:

* ``worker_direct`` is a durable queue of one worker, bound to ``WORKER_DIRECT_EXCHANGE`` (celery/utils/nodenames.py
  14).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celery.utils.nodenames import WORKER_DIRECT_EXCHANGE
from kombu import Queue

__all__ = ["ReturnNames", "like"]


class ReturnNames:
    """The names of one worker's return queues.

    Args:
        consumer: Celery's.

    Attributes:
        queues: the ones that this worker consumes for tasks, by name, whether or not they are left alone for now.
    """

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self._make_name: Callable[[str], str] = str
        self.queues: dict[str, Queue] = {}

    def set_up(self, make_name: Callable[[str], str]) -> None:
        """``make_name`` of a queue: its return queue's."""
        self._make_name = make_name

    def name_for(self, queue: str) -> str:
        """The queue by which throttled tasks of ``queue`` come back.

        Those of one that is one worker's alone (exclusive, deleted with its last consumer, ``worker_direct``) by that
        queue itself: one more would be left behind by each worker that there ever was.
        """
        found = self.queues.get(queue) or self._consumer.app.amqp.queues.get(queue)
        if found is not None and _is_one_workers(found) and self._has_its_name(found):
            return queue
        return self._make_name(queue)

    def _has_its_name(self, queue: Queue) -> bool:
        """Whether a message reaches a queue by its name: a fanout exchange's only on AMQP.

        Elsewhere (Redis) the other name is that of a list, and nothing is left of one that is empty.
        """
        return bool(getattr(queue.exchange, "type", None) != "fanout" or self.on_amqp)

    @property
    def on_amqp(self) -> bool:
        """Whether the broker is asked for nothing, but sends."""
        return bool(self._consumer.conninfo.transport.driver_type == "amqp")

    def origin_of(self, name: str) -> str:
        """The queue whose tasks come back by the queue ``name``; that itself, if it is no return queue."""
        return next((queue for queue in self.queues if self.name_for(queue) == name), name)

    def declaration(self, name: str) -> Queue | None:
        """How this worker declares a queue that its tasks come back by; None: that is not its part."""
        for queue in self.queues.values():
            if self.name_for(queue.name) == name:
                return queue if queue.name == name else like(queue, name)
        return None


def _is_one_workers(queue: Queue) -> bool:
    return bool(queue.exclusive or queue.auto_delete or queue.exchange == WORKER_DIRECT_EXCHANGE)


def like(queue: Queue, name: str) -> Queue:
    """A queue that is declared as another one is. Nothing is bound to it: messages are published to it by its name."""
    return Queue(
        name,
        durable=queue.durable,
        queue_arguments=queue.queue_arguments,
        max_priority=queue.max_priority,
    )
