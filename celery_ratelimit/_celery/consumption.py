"""What comes into a worker: from which queues, and how many messages.

What is relied on; line numbers are of Celery and kombu 5.7.0:

* ``Consumer.task_consumer`` (celery/worker/consumer/consumer.py): what the worker consumes.
* kombu asks for nothing while all has come in that may (kombu/transport/redis.py 741).
* ``app.amqp.Consumer`` is read when the worker connects (celery/worker/consumer/tasks.py 45).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from kombu.transport import virtual

from . import requests
from .broker import Broker
from .bulk_receive import BulkReceive
from .consumers import consumers, stamp_of
from .message_priority import order_of
from .prefetch import Prefetch
from .publisher import Publisher
from .return_consumer import ReturnConsumer
from .return_names import ReturnNames
from .saved_message import marker_in

__all__ = ["Consumption"]

logger = logging.getLogger("celery_ratelimit")


class Consumption:
    """The queues of one worker, and its prefetch.

    Args:
        consumer: Celery's.
        broker: its broker.
        names: of return queues.
        publisher: declares them.
        bulk_receive: what comes in at once.
    """

    def __init__(
        self, consumer: Any, broker: Broker, names: ReturnNames, publisher: Publisher, bulk_receive: BulkReceive
    ) -> None:
        self._consumer, self._broker, self._names = consumer, broker, names
        self._prefetch = Prefetch(consumer)
        self._returns = ReturnConsumer(consumer, names, self._prefetch, publisher, bulk_receive)
        self._beside: type | None = None

    def watch(self, on_message: Callable[[Any], None]) -> None:
        """From now on ``on_message`` sees each message when it comes in, before its countdown."""
        self._prefetch.exempt_returned(requests.was_throttled, requests.via_return_queue)
        amqp = self._consumer.app.amqp
        self._beside, amqp.Consumer = consumers(amqp.Consumer, on_message, self._returns)

    def check_origin(self, message: Any) -> None:
        """Correct the queue of a message whose marker names one that is not known here: it is the one it came from.

        Else it would be sent back to a queue without a consumer, and wait for ever.
        """
        marker = marker_in(message)
        if not marker or marker["queue"] in self._names.queues:
            return
        came_by = stamp_of(message, "ratelimit_queue")
        origin = self._names.origin_of(came_by)
        if (
            origin
            and marker["queue"] not in (came_by, origin)
            and marker["queue"] not in self._consumer.app.amqp.queues
        ):
            logger.warning(
                "A message in queue %r says to be from queue %r, which is not known here: taken as from %r",
                *(came_by, marker["queue"], origin),
            )
            marker["queue"] = origin

    def broker_order(self, message: Any, queue: str) -> int:
        """How far the broker puts a message of this queue behind messages without a priority. See :func:`order_of`."""
        declared = self._consumer.app.amqp.queues.get(queue)
        return order_of(message, declared)

    # -- Queues ----------------------------------------------------------------------------------------------------

    @property
    def queues(self) -> list[str]:
        """The queues that this worker consumes for tasks, also the ones that it leaves alone for now."""
        return list(self._names.queues)

    @property
    def has_several_queues(self) -> bool:
        """Whether tasks come from more than one queue."""
        return len(self._names.queues) > 1

    def consume_return_queues(self, name_for: Callable[[str], str]) -> None:
        """Consume, beside each queue of this worker, the queue by which its throttled tasks come back.

        Args:
            name_for: what it is called.
        """
        self._names.set_up(name_for)
        self._returns.set_up(self._beside)

    def return_queue_for(self, queue: str) -> str:
        """The queue by which throttled tasks of ``queue`` come back; that may be ``queue`` itself."""
        return self._names.name_for(queue)

    def pause_return_queues(self, paused: bool, then: Callable[[], None]) -> None:
        """Whether what comes back is for other workers, for now; what is on its way here comes still.

        ``then`` is called when it is, and what goes back to the broker would not come here at once again.
        """
        self._returns.paused = paused
        if self._broker.on_amqp:  # it asks, and waits for an answer: not while the gate is at work
            self._consumer.call_soon(self._returns.apply_pause, then)  # in any order: kombu's hub keeps none
        else:
            self._returns.apply_pause(then)

    def pause_while(self, is_late: Callable[[], bool]) -> None:
        """Nothing new comes in while the worker ``is_late`` with what it has; see :func:`.resting.pause_while`."""
        self._returns.is_late = is_late

    # -- How many --------------------------------------------------------------------------------------------------

    def widen_prefetch(self) -> None:
        """Let one more message come in, as Celery does for each task that waits for its ETA."""
        self._prefetch.widen(1)

    def narrow_prefetch(self) -> None:
        """Undo :meth:`widen_prefetch`."""
        self._prefetch.widen(-1)

    @property
    def prefetch_is_full(self) -> bool:
        """Whether nothing is asked of the broker, as all has come in that may; AMQP's never is asked."""
        qos = getattr(self._consumer.task_consumer.channel, "qos", None)
        return not isinstance(qos, virtual.QoS) or not qos.can_consume()
