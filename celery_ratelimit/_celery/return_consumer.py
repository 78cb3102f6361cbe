"""The queues that throttled tasks come back by: consumed beside their own queues, on a channel and in a window apart.

So what comes back comes in however full the worker's prefetch is, and whatever order its queues have; and no queue is
in ``app.amqp.queues`` that the user has not put there.

What is relied on; line numbers are of Celery and kombu 5.7.0:

* The worker's consumer is ``Consumer.task_consumer`` when it starts to consume (celery/worker/loops.py 95 and 176), and
  has its ``on_message``.
* A channel counts what it has handed out by itself: on Redis each has a ``QoS`` and a BRPOP of its own
  (kombu/transport/redis.py 467 and 737), on AMQP the broker counts for each consumer of it.
* ``Channel._brpop_start`` (kombu/transport/redis.py 1459) asks for the next message of a channel's queues. Whoever
  reads the answer asks ``qos.can_consume`` (on_readable), and would leave it unread for as long as that says no. Other
  virtual transports ask for nothing while it does (kombu/transport/virtual/base.py 231).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from kombu import Queue

from .bulk_receive import BulkReceive
from .channel_failures import end_connection_with
from .client_reuse import reuse_client
from .intake_pause import pause_while
from .prefetch import Prefetch
from .publisher import Publisher
from .return_names import ReturnNames, like

__all__ = ["MAX_RETURNED", "ReturnConsumer"]

logger = logging.getLogger("celery_ratelimit")

#: Messages that have come back and wait in a worker for their turn; on AMQP of each return queue.
MAX_RETURNED = 500


class ReturnConsumer:
    """The return queues of one worker: they follow the queues that it consumes.

    Args:
        consumer: Celery's.
        names: what they are called.
        prefetch: the window that they are not part of.
        publisher: declares them.
        bulk_receive: messages of their own queues that come in at once.

    Attributes:
        paused: whether they are to be left to other workers for now; see :meth:`apply_pause`.
    """

    def __init__(
        self, consumer: Any, names: ReturnNames, prefetch: Prefetch, publisher: Publisher, bulk_receive: BulkReceive
    ) -> None:
        self._celerys, self._names = consumer, names
        self._prefetch, self._publisher, self._bulk_receive = prefetch, publisher, bulk_receive
        self._make: Any = None
        self._main: Any = None
        self._beside: Any = None
        self.paused = False
        self.is_late: Callable[[], bool] = lambda: False

    def set_up(self, make: Any) -> None:
        """``make``: a class of consumers."""
        self._make = make

    # -- Following -------------------------------------------------------------------------------------------------

    def follow(self, main: Any, queue: Queue) -> None:
        """``main`` is about to consume ``queue``."""
        if self._make is None or main is not self._celerys.task_consumer:
            return  # another consumer
        if main is not self._main:
            self._begin(main)
        self._names.queues[queue.name] = queue
        self._update_queues()

    def leave(self, main: Any, queue: str) -> None:
        """``main`` does not consume ``queue`` any more."""
        if main is self._main and self._names.queues.pop(queue, None) is not None:
            self._update_queues()

    def stop(self, main: Any) -> None:
        """``main`` consumes nothing any more."""
        if main is self._main:
            beside, self._main, self._beside = self._beside, None, None
            self._names.queues.clear()
            if self._names.on_amqp:
                beside.cancel()
            else:  # what was asked for may come still: without a consumer kombu would warn of it before it puts it back
                _stop_polling(beside.channel)

    def _begin(self, main: Any) -> None:
        """A worker has started, or has a new connection."""
        channel = self._celerys.connection.channel()
        self._names.queues.clear()
        self._beside = self._make(
            channel,
            auto_declare=False,
            accept=self._celerys.app.conf.accept_content,
            on_decode_error=self._celerys.on_decode_error,
            on_message=self._receive,
            prefetch_count=MAX_RETURNED,
        )
        self._main = main
        self._pause_polling()
        for each in (main.channel, channel):
            end_connection_with(each)
            reuse_client(each)
            self._bulk_receive.watch(each)
        if self._celerys.hub is not None:
            pause_while(main.channel, lambda: self.is_late())
        self._prefetch.keep()

    # -- Left to others --------------------------------------------------------------------------------------------

    def apply_pause(self, then: Callable[[], None]) -> None:
        """Do as :attr:`paused` says; it may say something else meanwhile, as AMQP's broker has to answer.

        ``then`` is called when what goes back to the broker does not come here again.
        """
        if self._beside is not None:
            self._pause_polling()
            self._update_queues()
            if self.paused:
                then()

    def _pause_polling(self) -> None:
        """Elsewhere than on AMQP nothing is asked for; there, :meth:`_update_queues` sees to it."""
        if self._names.on_amqp:
            return
        if self.paused:
            _stop_polling(self._beside.channel)
        else:
            asks, name = _poll_method(self._beside.channel)
            vars(asks).pop(name, None)

    def _update_queues(self) -> None:
        """Consume the return queues of what is consumed; but not the ones consumed by name (``-Q a.throttled``)."""
        beside, queues = self._beside, dict(self._names.queues)
        if self.paused and self._names.on_amqp:
            queues.clear()
        names = {self._names.name_for(name): queue for name, queue in queues.items()}
        for queue in (*queues, *[each.name for each in self._main.queues]):
            names.pop(queue, None)
        for name in [each.name for each in beside.queues]:
            if name not in names:
                beside.cancel_by_queue(name)
        for name, queue in names.items():
            if not beside.consuming_from(name):
                added = beside.add_queue(like(queue, name))
                self._declare(added)
                beside.consume()

    def _declare(self, queue: Queue) -> None:
        if not self._names.on_amqp:
            queue.queue_declare()
        elif not self._publisher.declare(queue):
            logger.warning(
                "The return queue %r is at the broker with other arguments than its queue has: it is used as it is. "
                "Delete it when it is empty, and it is declared anew",
                queue.name,
            )

    def _receive(self, message: Any) -> None:
        if self._main is None:
            return  # AMQP's broker goes on until it has the cancellation: it gets back what is not acknowledged
        message.ratelimit_via_return_queue = True
        with self._prefetch.untouched():
            self._main.on_message(message)


def _poll_method(channel: Any) -> tuple[Any, str]:
    """What asks the broker for the next message of a channel: an object and the name of its method."""
    return (channel, "_brpop_start") if hasattr(channel, "_brpop_start") else (channel.qos, "can_consume")


def _stop_polling(channel: Any) -> None:
    asks, name = _poll_method(channel)
    setattr(asks, name, _not_now)


def _not_now(*_: Any) -> bool:
    return False
