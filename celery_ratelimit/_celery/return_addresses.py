"""Where throttled tasks return: return queues at the broker, which are made when a task needs them first.

On RabbitMQ a message keeps its routing key on its way back, as a dead-letter exchange goes by it: it is published to a
fanout exchange of the return queue alone.

What is relied on; line numbers are of Celery and kombu 5.7.0:

* ``Queues.create_missing`` is ``task_create_missing_queues`` (celery/app/amqp.py 106).
* ``worker_direct`` is a durable queue of one worker, bound to ``WORKER_DIRECT_EXCHANGE`` (celery/utils/nodenames.py
  14).
* ``to_rabbitmq_queue_arguments`` (kombu/transport/base.py 36) makes the arguments of a declaration.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from amqp.exceptions import PreconditionFailed
from celery.utils.nodenames import WORKER_DIRECT_EXCHANGE
from kombu import Queue
from kombu.transport.base import to_rabbitmq_queue_arguments

from .broker_queries import declare_passively
from .publisher import Publisher
from .saved_message import Parcel, ReturnAddress, marker_in_headers

__all__ = ["ReturnAddresses", "ReturnNames", "declared_like", "is_temporary"]

logger: logging.Logger = logging.getLogger("celery_ratelimit")

#: Arguments of a queue that bound what is in it.
_BOUNDS = frozenset({"x-max-length", "x-max-length-bytes", "x-message-ttl", "x-expires"})

#: Bytes of the longest name of a return queue: its exchange has a name of 255.
_LONGEST_NAME = 248


class ReturnNames:
    """The names of one worker's return queues.

    Attributes:
        queues: the queues that the worker consumes for tasks, by name, also paused ones.
        make_name: the return queue's name, by the name of its queue.
        refused: queues whose return queues this worker may not consume, or neither finds nor may declare.
    """

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self.make_name: Callable[[str], str] = str
        self.queues: dict[str, Queue] = {}
        self.refused: set[str] = set()
        consumer.ratelimit_refused = self.refused

    def name_for(self, queue: str) -> str:
        """The queue by which throttled tasks of ``queue`` return.

        A queue of one worker (exclusive, ``worker_direct``), or that the broker deletes when it is not used, is its own
        return queue: another one would be left behind. So is one whose return queue may not be declared, or would have
        too long a name for AMQP, and a FIFO queue of SQS: by another one a task would leave its message group.
        """
        if queue in self.refused or (queue.endswith(".fifo") and self._driver_type == "sqs"):
            return queue
        found = self.queues.get(queue) or self._consumer.app.amqp.queues.get(queue)
        is_own = found is not None and (
            is_temporary(found) or found.exclusive or found.exchange == WORKER_DIRECT_EXCHANGE
        )
        if is_own and self._is_reached_by_name(found):
            return queue
        name = self.make_name(queue)
        return name if len(name.encode()) <= _LONGEST_NAME or not self.on_amqp else queue

    def _is_reached_by_name(self, queue: Queue) -> bool:
        """Whether a message reaches a queue by its name: a fanout exchange's only on AMQP.

        On Redis the other name is that of a list, and nothing is left of an empty one.
        """
        return bool(getattr(queue.exchange, "type", None) != "fanout" or self.on_amqp)

    @property
    def on_amqp(self) -> bool:
        """Whether the broker sends messages unasked."""
        return self._driver_type == "amqp"

    @property
    def are_declared(self) -> bool:
        """Whether a queue has to be declared before a message is published to it; on Redis it is a list."""
        return self._driver_type != "redis"

    @property
    def _driver_type(self) -> str:
        return str(self._consumer.conninfo.transport.driver_type)

    def origin_of(self, name: str) -> str:
        """The queue whose return queue is ``name``; ``name`` itself, if it is no return queue."""
        return next((queue for queue in self.queues if self.name_for(queue) == name), name)


def is_temporary(queue: Queue) -> bool:
    """Whether the broker deletes a queue that has no consumer, at once or after a time."""
    return bool(queue.auto_delete or queue.expires or (queue.queue_arguments or {}).get("x-expires"))


def declared_like(queue: Queue, name: str) -> Queue:
    """A queue with the arguments of another one but its bounds, and no binding.

    It keeps where messages are dead-lettered. What returns was let in before, and has its own deadline.
    """
    arguments = {each: value for each, value in (queue.queue_arguments or {}).items() if each not in _BOUNDS}
    return Queue(name, durable=queue.durable, queue_arguments=arguments, max_priority=queue.max_priority)


class ReturnAddresses:
    """Where the throttled tasks of one worker return.

    ``on_new`` is called soon after a return queue is known to be at the broker.
    """

    def __init__(self, consumer: Any, names: ReturnNames, publisher: Publisher) -> None:
        self._consumer, self._publisher = consumer, publisher
        self.names = names
        self._known: dict[str, ReturnAddress] = {}
        self._there: set[str] = set()
        self.on_new: Callable[[], None] = lambda: None

    def is_there(self, name: str) -> bool:
        """Whether a return queue is at the broker."""
        return not self.names.are_declared or name in self._there

    def look(self, queue: str) -> None:
        """The worker is about to consume a queue: if its return queue is at the broker, it is consumed as well."""
        name = self.names.name_for(queue)
        if name != queue and self.names.are_declared and self._has(name, reads=True):
            self._there.add(name)

    def attended(self) -> set[tuple[str, str]]:
        """The return queues that this worker consumes, or has left to other workers, each with its queue."""
        pairs = {(self.names.name_for(queue), queue) for queue in self.names.queues}
        return {(name, queue) for name, queue in pairs if name != queue and self.is_there(name)}

    def forget(self) -> None:
        """There is a new connection, perhaps to another broker."""
        self._known.clear()
        self._there.clear()

    def address(self, queue: str) -> ReturnAddress:
        """Where a throttled task of ``queue`` returns. Its return queue is declared when this is called first."""
        if queue not in self._known:
            self._known[queue] = self._make(queue)
        return self._known[queue]

    def note_use(self, name: str) -> None:
        """A task is about to be published to a return queue: this worker consumes it if it is of its queues."""
        if not self.is_there(name) and (queue := self.names.origin_of(name)) != name:
            self.address(queue)

    def declare(self, name: str) -> bool:
        """Declare again what was removed from the broker. False: another worker declares it, or it may not be."""
        queue = self.names.queues.get(self.names.origin_of(name))
        if queue is None:
            return False
        if queue.name == name:
            return self._publisher.refusal_of(lambda channel: queue.bind(channel).queue_declare()) is None
        self._known.pop(queue.name, None)
        return self.address(queue.name).queue == name

    def refuse(self, queue: str, why: object) -> None:
        """This worker has no right to a return queue, or there is none: tasks return by their own queue."""
        if queue in self.names.refused:
            return
        name = self.names.name_for(queue)
        self.names.refused.add(queue)
        self._known.pop(queue, None)
        logger.warning(
            "The return queue %r is not at the broker, or not for this worker (%s): throttled tasks of %r return to "
            "that, behind its other messages. Grant configure, write and read on %r and the exchange %r, or declare "
            "both, a fanout that is bound to the queue. On SQS create it, and name it in predefined_queues",
            *(name, why, queue, name, f"{name}.fanout"),
        )

    def usable(self, parcel: Parcel) -> Parcel:
        """A parked message, to its own queue if this worker has no right to its return queue."""
        if not parcel or not self.names.refused:
            return parcel
        queue = marker_in_headers(parcel["headers"])["queue"]
        return {**parcel, "to": queue, "exchange": ""} if queue in self.names.refused else parcel

    def _make(self, queue: str) -> ReturnAddress:
        name, declared = self.names.name_for(queue), self.names.queues.get(queue)
        if not self.names.are_declared:
            return ReturnAddress(name)
        ttl, may_declare = None, False
        if declared is not None:
            given = to_rabbitmq_queue_arguments(declared.queue_arguments or {}, message_ttl=declared.message_ttl)
            ttl = given["x-message-ttl"] / 1e3 if self.names.on_amqp and "x-message-ttl" in given else None
            may_declare = self._consumer.app.amqp.queues.create_missing
            if name == queue or not self._is_made(declared, name, may_declare=may_declare):
                return ReturnAddress(queue, ttl=ttl)
        if not self.names.on_amqp:
            return ReturnAddress(name)
        exchange = f"{name}.fanout"  # a queue that `-Q` has made has a direct exchange of its own name

        def bind(channel: Any, *, passive: bool) -> None:
            channel.exchange_declare(exchange, "fanout", passive=passive, durable=True, auto_delete=False)
            if not passive:
                channel.queue_bind(name, exchange)

        for passive in (False, True) if may_declare else (True,):
            if self._publisher.refusal_of(partial(bind, passive=passive)) is None:
                return ReturnAddress(name, exchange, ttl)
        return ReturnAddress(name, ttl=ttl)

    def _is_made(self, queue: Queue, name: str, *, may_declare: bool) -> bool:
        """Whether the return queue of a consumed queue is at the broker now. Else tasks return by their own queue."""
        why: Any = "task_create_missing_queues is off"
        if may_declare:
            why = self._publisher.refusal_of(lambda channel: declared_like(queue, name).bind(channel).queue_declare())
            may_declare = why is None
        if not may_declare and not self._has(name):
            if queue.name in self.names.refused:  # noted while this has waited for the broker's answer
                return False
            self.refuse(queue.name, why)
            return False
        if isinstance(why, PreconditionFailed):
            logger.warning(
                "The return queue %r is at the broker with other arguments than its queue has: it is used as it is. "
                "Delete it when it is empty, and it is declared anew",
                name,
            )
        if name not in self._there:
            self._there.add(name)
            self._consumer.call_soon(self.on_new)  # it asks, and waits for an answer: not while the gate is at work
        return True

    def _has(self, name: str, *, reads: bool = False) -> bool:
        """Ask the broker whether it has a queue."""
        return self._publisher.refusal_of(lambda channel: declare_passively(channel, name), reads=reads) is None
