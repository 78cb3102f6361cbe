"""What comes into a worker: from which queues, and how many messages.

What is relied on; line numbers are those of Celery and kombu 5.7.0:

* ``Consumer.task_consumer`` and ``app.amqp.queues.consume_from`` (celery/worker/consumer/consumer.py): what the worker
  consumes, and whether somebody has cancelled it.
* kombu ends a queue's consumption, where it is told so while a message of it is handled, at the end of that
  (kombu/transport/redis.py 1325), and asks for nothing while all has come in that may (741).
* ``app.amqp.Consumer`` is read when the worker connects (celery/worker/consumer/tasks.py 45).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from kombu.transport import virtual

from . import requests
from .broker import Broker
from .importance import order_of
from .outbox import Outbox
from .parcel import marker_in
from .prefetch import Prefetch
from .returns import Returns, consumers, noted
from .together import MOST, Together

__all__ = ["Intake"]

logger = logging.getLogger("celery_ratelimit")


class Intake:
    """The queues of one worker, and its prefetch.

    Args:
        consumer: Celery's.
        broker: its broker.
        outbox: declares return queues.
        together: what comes in at once.
    """

    def __init__(self, consumer: Any, broker: Broker, outbox: Outbox, together: Together) -> None:
        self._consumer, self._broker, self._together = consumer, broker, together
        self._prefetch = Prefetch(consumer)
        self._returns = Returns(consumer, self._prefetch, outbox, together)
        self._beside: type | None = None

    def watch(self, on_message: Callable[[Any], None]) -> None:
        """From now on ``on_message`` sees each message when it comes in, before its countdown."""
        self._prefetch.pass_celerys_limit(requests.came_back, requests.came_beside)
        amqp = self._consumer.app.amqp
        self._beside, amqp.Consumer = consumers(amqp.Consumer, on_message, self._returns)

    def check_origin(self, message: Any) -> None:
        """What says to come from a queue that nobody here knows comes from where it came.

        Else it would be sent back to where nobody consumes, and wait for ever.
        """
        marker = marker_in(message)
        came_by = noted(message, "ratelimit_queue")
        origin = self._returns.origin_of(came_by) if marker else came_by
        if marker and origin and marker["queue"] not in {came_by, origin, *self._consumer.app.amqp.queues}:
            logger.warning(
                "A message in queue %r says to be from queue %r, which is not known here: taken as from %r",
                *(came_by, marker["queue"], origin),
            )
            marker["queue"] = origin

    def order_of(self, message: Any, queue: str) -> int:
        """How far the broker puts a message of this queue behind those without a priority. See :func:`order_of`."""
        declared = self._consumer.app.amqp.queues.get(queue)
        return order_of(message, declared)

    # -- Queues ----------------------------------------------------------------------------------------------------

    @property
    def queues(self) -> list[str]:
        """The queues that this worker consumes for tasks, those included that it leaves alone for now."""
        return list(self._returns.queues)

    @property
    def has_several_queues(self) -> bool:
        """Whether tasks come from more than one queue."""
        return len(self._returns.queues) > 1

    def consume_return_queues(self, name_for: Callable[[str], str]) -> None:
        """Consume, beside each queue of this worker, the queue by which its throttled tasks come back.

        Args:
            name_for: what it is called.
        """
        self._returns.set_up(name_for, self._beside)

    def return_queue_for(self, queue: str) -> str:
        """The queue by which throttled tasks of ``queue`` come back; that may be ``queue`` itself."""
        return self._returns.name_for(queue)

    def declaration_of_return_queue(self, name: str) -> Any:
        """How this worker declares a queue that its tasks come back by; None: that is not its part."""
        return self._returns.declaration(name)

    def may_stop_consuming(self, queue: str) -> bool:
        """Not a queue that would be deleted then, with what is in it."""
        found = self._returns.queues.get(queue)
        return found is None or not found.auto_delete

    def stop_consuming(self, queue: str) -> None:
        """Leave the messages of a queue in the broker from now on.

        To be called while a message of it is handled: then nothing is being asked of the broker, and kombu delays it to
        the end of that, so that none comes in that nobody would take; or when it :attr:`is_full`.
        """
        if self._broker.apart and self._broker.on_amqp:  # a task whose own countdown has ended comes by another thread
            self._consumer.call_soon(self._consumer.task_consumer.leave_alone, queue)
        else:
            self._consumer.task_consumer.leave_alone(queue)

    def go_on_consuming(self, queue: str) -> None:
        """Undo :meth:`stop_consuming`, unless somebody has cancelled the queue meanwhile."""
        if self._broker.apart:  # the thread that reads from the broker has to do it
            self._consumer.call_soon(self._go_on_consuming, queue)
        else:
            self._go_on_consuming(queue)

    def _go_on_consuming(self, queue: str) -> None:
        consumer, queues = self._consumer.task_consumer, self._consumer.app.amqp.queues
        if queue in queues.consume_from and not consumer.consuming_from(queue):
            consumer.add_queue(queues[queue])
            consumer.consume()

    def leave_returned_to_others(self, are_left: bool, then: Callable[[], None]) -> None:
        """Whether what comes back is for other workers, for now; what is on its way here comes still.

        ``then`` is called when it is, and what goes back to the broker would not come here at once again.
        """
        self._returns.are_left = are_left
        if self._broker.on_amqp:  # it asks, and waits for an answer: not while somebody is at work in the gate
            self._consumer.call_soon(self._returns.leave_to_others, then)  # in any order: kombu's hub keeps none
        else:
            self._returns.leave_to_others(then)

    def does_anybody_wait_to_return(self) -> bool:
        """Whether throttled tasks wait at the broker to come back to this worker or another; or it is not known."""
        return self._returns.does_anybody_wait()

    # -- Together --------------------------------------------------------------------------------------------------

    def come_together(self, source: str, after: Callable[[], None]) -> None:
        """See :meth:`Together.set_up`."""
        self._together.set_up(source, after)

    @property
    def comes_together(self) -> bool:
        """Whether messages are just coming that have come in together."""
        return self._together.is_at_it

    def gather(self, message: Any, most: int = MOST) -> None:
        """See :meth:`Together.gather`."""
        self._together.gather(message, most)

    # -- How many --------------------------------------------------------------------------------------------------

    def widen(self) -> None:
        """Let one more message come in, as Celery does for each task that waits for its ETA."""
        self._prefetch.widen(1)

    def narrow(self) -> None:
        """Undo :meth:`widen`."""
        self._prefetch.widen(-1)

    @property
    def is_full(self) -> bool:
        """Whether nothing is asked of the broker, as all has come in that may; AMQP's never is asked."""
        qos = getattr(self._consumer.task_consumer.channel, "qos", None)
        return not isinstance(qos, virtual.QoS) or not qos.can_consume()
