"""The queues that throttled tasks come back by: consumed beside their own queues, on a channel and in a window apart.

So what comes back comes in however full the worker's prefetch is, and whatever order its queues have; and no queue is
in ``app.amqp.queues`` that the user has not put there.

What is relied on; line numbers are those of Celery and kombu 5.7.0:

* ``app.amqp.Consumer`` makes the worker's consumer (celery/app/amqp.py 361; celery/worker/consumer/tasks.py 45), which
  is ``Consumer.task_consumer`` when it starts to consume (celery/worker/loops.py 95 and 176), and has its
  ``on_message``.
* ``kombu.Consumer._basic_consume`` (kombu/messaging.py 841): called for each queue whose messages come from then on,
  and the one place that knows on every transport which queue a message comes from. ``cancel_by_queue`` (735) ends that
  for one queue, ``cancel`` (719) for all; both are what Celery calls (consumer.py 728; tasks.py 89).
* A channel counts what it has handed out by itself: on Redis each has a ``QoS`` and a BRPOP of its own
  (kombu/transport/redis.py 467 and 737), on AMQP the broker counts for each consumer of it.
* ``Channel._brpop_start`` (kombu/transport/redis.py 1459) asks for the next message of a channel's queues. Whoever
  reads the answer asks ``qos.can_consume`` (on_readable), and would leave it unread for as long as that says no. Other
  virtual transports ask for nothing while it does (kombu/transport/virtual/base.py 231).
* ``worker_direct`` is a durable queue of one worker, bound to ``WORKER_DIRECT_EXCHANGE`` (celery/utils/nodenames.py
  14).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from celery.utils.nodenames import WORKER_DIRECT_EXCHANGE
from kombu import Queue

from .channels import end_connection_with
from .clients import keep_client
from .endings import contain_unreadable
from .outbox import Outbox
from .prefetch import Prefetch
from .together import Together

__all__ = ["MOST_RETURNED", "Returns", "consumers", "noted"]

logger = logging.getLogger("celery_ratelimit")

#: Messages that have come back and wait in a worker for their turn; on AMQP of each return queue.
MOST_RETURNED = 500


class Returns:
    """The return queues of one worker: they follow the queues that it consumes.

    Args:
        consumer: Celery's.
        prefetch: the window that they are not part of.
        outbox: declares them.
        together: messages of their own queues that come in at once.

    Attributes:
        queues: those that this worker consumes for tasks, by name, whether or not they are left alone for now.
        are_left: whether they are to be left to other workers for now; see :meth:`leave_to_others`.
    """

    def __init__(self, consumer: Any, prefetch: Prefetch, outbox: Outbox, together: Together) -> None:
        self.queues: dict[str, Queue] = {}
        self._celerys, self._prefetch, self._outbox, self._together = consumer, prefetch, outbox, together
        self._name_for: Callable[[str], str] = str
        self._make: Any = None
        self._main: Any = None
        self._beside: Any = None
        self.are_left = False

    def set_up(self, name_for: Callable[[str], str], make: Any) -> None:
        """``name_for`` a queue: its return queue's name; ``make``: a class of consumers."""
        self._name_for, self._make = name_for, make

    # -- Names -----------------------------------------------------------------------------------------------------

    def name_for(self, queue: str) -> str:
        """The queue by which throttled tasks of ``queue`` come back.

        Those of one that is one worker's alone (exclusive, deleted with its last consumer, ``worker_direct``) by that
        queue itself: one more would be left behind by each worker that there ever was.
        """
        found = self.queues.get(queue) or self._celerys.app.amqp.queues.get(queue)
        if found is not None and _is_one_workers(found) and self._has_its_name(found):
            return queue
        return self._name_for(queue)

    def _has_its_name(self, queue: Queue) -> bool:
        """Whether a message reaches a queue by its name: a fanout exchange's only on AMQP.

        Elsewhere (Redis) the other name is that of a list, and nothing is left of one that is empty.
        """
        return bool(getattr(queue.exchange, "type", None) != "fanout" or self._on_amqp)

    @property
    def _on_amqp(self) -> bool:
        return bool(self._celerys.conninfo.transport.driver_type == "amqp")

    def origin_of(self, name: str) -> str:
        """The queue whose tasks come back by the queue ``name``; that itself, if it is nobody's return queue."""
        return next((queue for queue in self.queues if self.name_for(queue) == name), name)

    def declaration(self, name: str) -> Queue | None:
        """How this worker declares a queue that its tasks come back by; None: that is not its part."""
        for queue in self.queues.values():
            if self.name_for(queue.name) == name:
                return queue if queue.name == name else _like(queue, name)
        return None

    # -- Following -------------------------------------------------------------------------------------------------

    def follow(self, main: Any, queue: Queue) -> None:
        """``main`` is about to consume ``queue``."""
        if self._make is None or main is not self._celerys.task_consumer:
            return  # somebody else's
        if main is not self._main:
            self._begin(main)
        self.queues[queue.name] = queue
        self._settle()

    def leave(self, main: Any, queue: str) -> None:
        """``main`` does not consume ``queue`` any more."""
        if main is self._main and self.queues.pop(queue, None) is not None:
            self._settle()

    def stop(self, main: Any) -> None:
        """``main`` consumes nothing any more."""
        if main is self._main:
            beside, self._main, self._beside = self._beside, None, None
            self.queues.clear()
            beside.cancel()

    def _begin(self, main: Any) -> None:
        """A worker has started, or has a new connection."""
        channel = self._celerys.connection.channel()
        self.queues.clear()
        self._beside = self._make(
            channel,
            auto_declare=False,
            accept=self._celerys.app.conf.accept_content,
            on_decode_error=self._celerys.on_decode_error,
            on_message=self._receive,
            prefetch_count=MOST_RETURNED,
        )
        self._main = main
        self._leave_alone()
        for each in (main.channel, channel):
            end_connection_with(each)
            keep_client(each)
            self._together.watch(each)
        self._prefetch.keep()

    # -- Left to others --------------------------------------------------------------------------------------------

    def leave_to_others(self, then: Callable[[], None]) -> None:
        """Do as :attr:`are_left` says; it may say something else meanwhile, as AMQP's broker has to answer.

        ``then`` is called when what goes back to the broker does not come here again.
        """
        if self._beside is not None:
            self._leave_alone()
            self._settle()
            if self.are_left:
                then()

    def _leave_alone(self) -> None:
        """Elsewhere than on AMQP nothing is asked for; there, :meth:`_settle` sees to it."""
        channel = self._beside.channel
        if self._on_amqp:
            return
        asks, name = (channel, "_brpop_start") if hasattr(channel, "_brpop_start") else (channel.qos, "can_consume")
        if self.are_left:
            setattr(asks, name, _not_now)
        else:
            vars(asks).pop(name, None)

    def does_anybody_wait(self) -> bool:
        """Whether a message is in one of them, which this worker consumes; or the broker does not say."""
        names = {self.name_for(queue) for queue in self.queues} - self.queues.keys()
        try:
            return any(self._outbox.count(self._beside.channel, name) for name in names)
        except Exception as error:
            logger.debug("the broker does not say whether tasks wait in %s: %r", sorted(names), error)
            return True

    def _settle(self) -> None:
        """Consume the return queues of what is consumed; but those that are consumed as queues (``-Q a.throttled``)."""
        beside, queues = self._beside, dict(self.queues)
        if self.are_left and self._on_amqp:
            queues.clear()
        names = {self.name_for(name): queue for name, queue in queues.items()}
        for queue in (*queues, *[each.name for each in self._main.queues]):
            names.pop(queue, None)
        for name in [each.name for each in beside.queues]:
            if name not in names:
                beside.cancel_by_queue(name)
        for name, queue in names.items():
            if not beside.consuming_from(name):
                added = beside.add_queue(_like(queue, name))
                self._declare(added)
                beside.consume()

    def _declare(self, queue: Queue) -> None:
        if not self._on_amqp:
            queue.queue_declare()
        elif not self._outbox.declare(queue):
            logger.warning(
                "The return queue %r is at the broker with other arguments than its queue has: it is used as it is. "
                "Delete it when it is empty, and it is declared anew",
                queue.name,
            )

    def _receive(self, message: Any) -> None:
        message.ratelimit_beside = True
        with self._prefetch.untouched():
            self._main.on_message(message)


def _not_now(*_: Any) -> bool:
    return False


def _is_one_workers(queue: Queue) -> bool:
    return bool(queue.exclusive or queue.auto_delete or queue.exchange == WORKER_DIRECT_EXCHANGE)


def _like(queue: Queue, name: str) -> Queue:
    """A queue that is declared as another one is. Nothing is bound to it: who publishes to it does so by its name."""
    return Queue(
        name,
        durable=queue.durable,
        queue_arguments=queue.queue_arguments,
        max_priority=queue.max_priority,
    )


def noted(message: Any, name: str) -> Any:
    """What a consumer has noted on a message: ``ratelimit_queue``, and ``ratelimit_since``."""
    return getattr(message, name, None) or (message.delivery_info or {}).get(name)


def consumers(base: type, on_message: Callable[[Any], None], returns: Returns) -> tuple[type, type]:
    """Two kinds of kombu consumer: both note on each message its queue and when it came, and tell ``on_message``.

    A routing key is not that: a topic exchange has many queues for one. AMQP gives a consumer tag, Redis nothing. The
    second kind is for the queues of tasks: ``returns`` follow it.
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
                        message.delivery_info.update(ratelimit_queue=queue.name, ratelimit_since=now)
                    else:
                        message.ratelimit_queue, message.ratelimit_since = queue.name, now
                    on_message(message)
                    return callback(message)

                consumed = consume(tag, stamped, **options)
                contain_unreadable(self.channel, queue.name)
                return consumed

            on_amqp = self.channel.connection.client.transport.driver_type == "amqp"
            queue.consume = consume_stamped
            try:
                return super()._basic_consume(queue, *args, **kwargs)
            finally:
                del queue.consume

    class TaskConsumer(Consumer):
        def _basic_consume(self, queue: Any, *args: Any, **kwargs: Any) -> Any:
            returns.follow(self, queue)
            return super()._basic_consume(queue, *args, **kwargs)

        def leave_alone(self, queue: str) -> None:
            """Do not consume a queue for now: what was throttled comes back meanwhile."""
            super().cancel_by_queue(queue)

        def cancel_by_queue(self, queue: Any) -> None:
            super().cancel_by_queue(queue)
            returns.leave(self, getattr(queue, "name", queue))

        def cancel(self) -> None:
            try:
                returns.stop(self)
            finally:
                super().cancel()

        close = cancel

    return Consumer, TaskConsumer
