"""The consumer of return queues, on a channel of its own, outside the prefetch.

So a throttled task returns however full the worker's prefetch is, and whatever order its queues have. No queue is added
to ``app.amqp.queues``.

What is relied on; line numbers are of Celery and kombu 5.7.0:

* The worker's consumer is ``Consumer.task_consumer`` when it starts to consume (celery/worker/loops.py 95 and 176), and
  has its ``on_message``.
* A channel counts what it has handed out by itself: on Redis each has a ``QoS`` and a BRPOP of its own
  (kombu/transport/redis.py 467 and 737), on AMQP the broker counts for each consumer of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from amqp.exceptions import AccessRefused, RecoverableConnectionError
from kombu import Queue

from .bulk_receive import BulkReceive
from .channel_patches import end_connection_with, pause_while, resume_polling, reuse_client, stop_polling
from .prefetch import Prefetch
from .return_addresses import ReturnAddresses, declared_like

__all__ = ["MAX_RETURNED", "ReturnConsumer"]

#: Returned messages that wait in a worker for their turn; on AMQP of each return queue.
MAX_RETURNED = 500


class ReturnConsumer:
    """The consumer of one worker's return queues. It follows the worker's consumer of tasks.

    Attributes:
        consumer_class: of kombu's consumers; None: return queues are not consumed.
        on_closed: called with what the broker says when it closes a channel.
        paused: whether the return queues are left to other workers; in effect after :meth:`apply_pause`.
        is_late: tells whether the worker is to receive no new message.
    """

    def __init__(
        self, consumer: Any, prefetch: Prefetch, addresses: ReturnAddresses, bulk_receive: BulkReceive
    ) -> None:
        self._worker_consumer, self._names = consumer, addresses.names
        self._prefetch, self._addresses, self._bulk_receive = prefetch, addresses, bulk_receive
        addresses.on_new = self._update_queues
        self._task_consumer: Any = None
        self._consumer: Any = None
        self.consumer_class: Any = None
        self.paused = False
        self.is_late: Callable[[], bool] = lambda: False
        self.on_closed: Callable[[str], None] = lambda text: None

    def follow(self, task_consumer: Any, queue: Queue) -> None:
        """``task_consumer`` is about to consume ``queue``."""
        if self.consumer_class is None or task_consumer is not self._worker_consumer.task_consumer:
            return  # another consumer
        if task_consumer is not self._task_consumer:
            self._begin(task_consumer)
        self._names.queues[queue.name] = queue
        self._addresses.look(queue.name)
        self._update_queues()

    def unfollow(self, task_consumer: Any, queue: str) -> None:
        """``task_consumer`` does not consume ``queue`` any more."""
        if task_consumer is self._task_consumer and self._names.queues.pop(queue, None) is not None:
            self._update_queues()

    def stop(self, task_consumer: Any) -> None:
        """``task_consumer`` consumes nothing any more."""
        if task_consumer is self._task_consumer:
            consumer, self._task_consumer, self._consumer = self._consumer, None, None
            self._names.queues.clear()
            if self._names.on_amqp:
                consumer.cancel()
            else:  # an answer may still come: without a consumer kombu would warn of it before it puts it back
                stop_polling(consumer.channel)

    def apply_pause(self, then: Callable[[], None]) -> None:
        """Do as :attr:`paused` says, which may change while AMQP's broker answers.

        ``then`` is called if they are paused: a message that is sent back does not return here.
        """
        if self._consumer is not None:
            self._update_polling()
            self._update_queues()
            if self.paused:
                then()

    def _begin(self, task_consumer: Any) -> None:
        """The worker has started, or has a new connection."""
        channel = self._worker_consumer.connection.channel()
        self._names.queues.clear()
        self._addresses.forget()
        self._consumer = self.consumer_class(
            channel,
            auto_declare=False,
            accept=self._worker_consumer.app.conf.accept_content,
            on_decode_error=self._worker_consumer.on_decode_error,
            on_message=self._receive,
            prefetch_count=MAX_RETURNED,
        )
        self._task_consumer = task_consumer
        self._update_polling()
        for each in (task_consumer.channel, channel):
            end_connection_with(each, self.on_closed)
            reuse_client(each)
            self._bulk_receive.watch(each)
        if self._worker_consumer.hub is not None:
            pause_while(task_consumer.channel, lambda: self.is_late())
        self._prefetch.attach()

    def _update_polling(self) -> None:
        """On other brokers than AMQP, where :meth:`_update_queues` does it: ask for no message while paused."""
        if not self._names.on_amqp:
            (stop_polling if self.paused else resume_polling)(self._consumer.channel)

    def _update_queues(self) -> None:
        """Consume the return queues, as far as they are there, except return queues consumed by ``-Q a.throttled``."""
        consumer, queues = self._consumer, dict(self._names.queues)
        if consumer is None:
            return  # the connection is lost
        if self.paused and self._names.on_amqp:
            queues.clear()
        names = {self._names.name_for(name): queue for name, queue in queues.items()}
        for queue in (*queues, *[each.name for each in self._task_consumer.queues]):
            names.pop(queue, None)
        for name in [each.name for each in consumer.queues]:
            if name not in names:
                consumer.cancel_by_queue(name)
        for name, queue in names.items():
            if not consumer.consuming_from(name) and self._addresses.is_there(name):
                added = consumer.add_queue(declared_like(queue, name))
                if not self._names.on_amqp:
                    added.queue_declare()
                try:
                    consumer.consume()
                except RecoverableConnectionError as error:
                    if error.reply_code == AccessRefused.code:
                        self._addresses.refuse(queue.name, error)
                    raise

    def _receive(self, message: Any) -> None:
        if self._task_consumer is None:
            return  # AMQP's broker goes on until it has the cancellation: it gets back what is not acknowledged
        message.ratelimit_via_return_queue = True
        with self._prefetch.unchanged():
            self._task_consumer.on_message(message)
