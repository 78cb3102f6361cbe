"""What a worker consumes: its queues, their return queues, and how many messages.

What is relied on; line numbers are of Celery and kombu 5.7.0:

* ``Consumer.task_consumer`` and ``app.amqp.queues.consume_from`` (celery/worker/consumer/consumer.py): what the worker
  consumes, and whether it was cancelled.
* kombu asks for nothing while all has come in that may (kombu/transport/redis.py 741).
* kombu ends a queue's consumption, where it is told so while a message of it is handled, at the end of that
  (kombu/transport/redis.py 1325).
* ``app.amqp.Consumer``, read when the worker connects, makes its consumer (celery/app/amqp.py 361;
  celery/worker/consumer/tasks.py 45).
* ``kombu.Consumer._basic_consume`` (kombu/messaging.py 841): called for each queue whose messages come from then on,
  and the one place that knows on every transport which queue a message comes from. ``cancel_by_queue`` (735) ends that
  for one queue, ``cancel`` (719) for all; both are what Celery calls (consumer.py 728; tasks.py 89).
* ``amqp.Channel.basic_consume`` (py-amqp 5.4, channel.py 1585) knows the callback of a consumer after it has waited.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from kombu.transport import virtual

from . import message_fields
from .broker import Broker
from .bulk_receive import BulkReceive
from .prefetch import Prefetch
from .return_addresses import ReturnAddresses, is_temporary
from .return_queue_consumer import ReturnConsumer
from .saved_message import marker_in

__all__ = ["ConsumedQueues", "consumer_classes"]

logger: logging.Logger = logging.getLogger("celery_ratelimit")


class ConsumedQueues:
    """The queues of one worker, and its ``prefetch``."""

    def __init__(self, consumer: Any, broker: Broker, addresses: ReturnAddresses, bulk_receive: BulkReceive) -> None:
        self._consumer, self._broker, self._names = consumer, broker, addresses.names
        self.prefetch: Prefetch = Prefetch(consumer)
        self._return_consumer = ReturnConsumer(consumer, self.prefetch, addresses, bulk_receive)
        self._return_consumer.on_closed = broker.on_channel_closed
        self._consumer_class: type | None = None

    def watch(self, on_message: Callable[[Any], None]) -> None:
        """Call ``on_message`` with each message that is delivered, before its countdown."""
        self.prefetch.exempt_returned()
        amqp = self._consumer.app.amqp
        self._consumer_class, amqp.Consumer = consumer_classes(amqp.Consumer, on_message, self._return_consumer)

    def correct_queue(self, message: Any) -> None:
        """If a marker names a queue that is not known here, replace it by the queue from which the message came.

        Otherwise the message would be sent back to a queue without a consumer. A message that was moved to a queue,
        as a dead letter is, comes from there.
        """
        marker = marker_in(message)
        if not marker:
            return
        came_by = message_fields.stamp_of(message, "ratelimit_queue")
        if came_by in self._names.queues and came_by not in (queue := marker["queue"], self._names.make_name(queue)):
            marker["queue"] = came_by
        if marker["queue"] in self._names.queues:
            return
        origin = self._names.origin_of(came_by)
        known = self._consumer.app.amqp.queues
        if origin and marker["queue"] not in (came_by, origin) and marker["queue"] not in known:
            logger.warning(
                "A message in queue %r says to be from queue %r, which is not known here: taken as from %r",
                *(came_by, marker["queue"], origin),
            )
            marker["queue"] = origin

    def broker_order(self, message: Any, queue: str) -> int:
        """How many steps the broker puts a message of ``queue`` behind messages without a priority."""
        return message_fields.broker_order(message, self._consumer.app.amqp.queues.get(queue))

    def nears_delivery_limit(self, request: Any, queue: str) -> bool:
        """Whether a quorum queue may soon drop a message of a task that never ran; published again, it is counted anew.

        Of a task with ``acks_late`` nothing is known: each delivery that was lost may have been a run.
        """
        declared = self._consumer.app.amqp.queues.get(queue)
        return not request.task.acks_late and message_fields.nears_delivery_limit(request.message, declared)

    # -- Queues ----------------------------------------------------------------------------------------------------

    @property
    def queues(self) -> list[str]:
        """The queues that this worker consumes for tasks, also paused ones."""
        return list(self._names.queues)

    @property
    def has_several_queues(self) -> bool:
        """Whether tasks come from more than one queue."""
        return len(self._names.queues) > 1

    def consume_return_queues(self, name_for: Callable[[str], str]) -> None:
        """Consume, beside each queue of this worker, its return queue, which ``name_for`` names."""
        self._names.make_name = name_for
        self._return_consumer.consumer_class = self._consumer_class

    def return_queue_for(self, queue: str) -> str:
        """The queue by which throttled tasks of ``queue`` return; that may be ``queue`` itself."""
        return self._names.name_for(queue)

    def pause_return_queues(self, paused: bool, then: Callable[[], None]) -> None:
        """Leave the return queues to other workers, or consume them again; messages on their way still arrive.

        ``then`` is called once they are paused: from then on a message that is sent back does not return here.
        """
        self._return_consumer.paused = paused
        if self._broker.on_amqp:  # it asks, and waits for an answer: not while the gate is at work
            self._consumer.call_soon(self._return_consumer.apply_pause, then)  # in any order: kombu's hub keeps none
        else:
            self._return_consumer.apply_pause(then)

    def may_pause_queue(self, queue: str) -> bool:
        """False for a queue that the broker would then delete, with its messages."""
        declared = self._names.queues.get(queue)
        return declared is None or not is_temporary(declared)

    def pause_queue(self, queue: str) -> None:
        """Leave the messages of a queue in the broker.

        To be called while a message of it is handled, or while the prefetch is full: then the broker is not being asked
        for a message, and kombu delays the end to that of the handling.
        """
        pause = self._consumer.task_consumer.pause_queue
        if self._broker.no_event_loop and self._broker.on_amqp:
            self._consumer.call_soon(pause, queue)  # a task whose own countdown has ended comes by another thread
        else:
            pause(queue)

    def resume_queue(self, queue: str) -> None:
        """Undo :meth:`pause_queue`, unless the queue was cancelled meanwhile."""
        if self._broker.no_event_loop:  # the thread that reads from the broker has to do it
            self._consumer.call_soon(self._resume, queue)
        else:
            self._resume(queue)

    def _resume(self, queue: str) -> None:
        consumer, queues = self._consumer.task_consumer, self._consumer.app.amqp.queues
        if queue in queues.consume_from and not consumer.consuming_from(queue):
            # No wait for AMQP's answer: py-amqp would reject messages that come with it, and RabbitMQ's channel would
            # crash if one of them paused the queue meanwhile.
            consumer._basic_consume(consumer.add_queue(queues[queue]), nowait=True)

    # -- How many messages -----------------------------------------------------------------------------------------

    def pause_while(self, is_late: Callable[[], bool]) -> None:
        """Receive no new message while the worker ``is_late``; see :func:`.channels.pause_while`."""
        self._return_consumer.is_late = is_late

    @property
    def prefetch_is_full(self) -> bool:
        """Whether the worker asks for no message, as its prefetch is full. On AMQP, which sends unasked: always."""
        qos = getattr(self._consumer.task_consumer.channel, "qos", None)
        return not isinstance(qos, virtual.QoS) or not qos.can_consume()


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
                    message_fields.stamp(message, ratelimit_queue=queue.name, ratelimit_received_at=time.monotonic())
                    on_message(message)
                    return callback(message)

                # py-amqp sets it at the answer (channel.py 1605), and rejects what comes before, read by a callback.
                getattr(queue.channel, "callbacks", {})[tag] = stamped
                return consume(tag, stamped, **options)

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
