"""Messages that leave a worker for the broker: published first, then acknowledged here.

What is relied on; line numbers are those of Celery and kombu 5.7.0:

* ``kombu.transport.redis.QoS`` (kombu/transport/redis.py 467): what it does to acknowledge a message (499 and 518).
* ``Request.acknowledged`` and ``Message._state``: whether a message is; ``state.task_ready`` (celery/worker/state.py
  215): its request has ended here.
* ``AMQP.Queues`` makes queues as the app's settings say, ``Queues.new_missing`` one that nobody has named
  (celery/app/amqp.py 317 and 235).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from celery.worker import state
from kombu.transport import virtual

from .broker import Broker
from .identity import RedisQoS, stored_id
from .outbox import NoSuchQueue, Outbox
from .parcel import Parcel, parcel_of
from .timers import Timers

__all__ = ["Departures"]

logger = logging.getLogger("celery_ratelimit")

#: Messages that are acknowledged at once, and seconds after which they are, be they fewer. Until then a worker that
#: is killed leaves them at the broker, too.
MOST_AT_ONCE, AT_LATEST = 20, 0.02


class Departures:
    """What one worker publishes again, and what it need not hold any more.

    Args:
        consumer: Celery's.
        broker: its broker.
        timers: its timers.
        outbox: publishes.
        return_queue: how this worker declares a queue that its tasks come back by; None: that is not its part.
    """

    def __init__(
        self,
        consumer: Any,
        broker: Broker,
        timers: Timers,
        outbox: Outbox,
        return_queue: Callable[[str], Any],
    ) -> None:
        self._consumer, self._app, self._broker, self._timers = consumer, consumer.app, broker, timers
        self._outbox, self._return_queue = outbox, return_queue
        self._unacknowledged: list[Any] = []
        self._acknowledge_later: Callable[[], None] | None = None

    # -- Publish ---------------------------------------------------------------------------------------------------

    def send_back(self, request: Any, queue: str, return_queue: str, delay: float, doubts: int = 0) -> None:
        """Publish the message again as it is, to come back after ``delay`` seconds, and acknowledge this copy.

        In that order: a crash between the two leaves a duplicate with the same id, never a gap. Raises what the publish
        raises; the message then is unacknowledged still. ``doubts``: see :func:`~.parcel.doubts_in`.
        """
        parcel = parcel_of(request, queue, return_queue, stored_id(request, queue))
        self._publish_one(request, (parcel, delay, {"again": doubts or True}), self._return_queue)
        self.acknowledge(request)

    def redirect(self, request: Any, queue: str) -> None:
        """Publish the message as the user has sent it to another queue, and acknowledge this copy.

        A queue that is not there is made, as it would be for whoever sends a task to it.
        """
        self._publish_one(request, (parcel_of(request, queue, ""), 0.0, {}), self._as_settings_say)
        self.acknowledge(request)

    def publish(self, parcels: Sequence[tuple[Parcel, float, Mapping[str, Any]]]) -> set[str]:
        """Publish messages that were parked, with their delays and markers; see :func:`~.parcel.publish`.

        Returns:
            Queues that the broker does not have; what was to go there was not published.
        """
        if self._broker.takes_few_countdowns:
            parcels = [(parcel, 0.0, marker) for parcel, _, marker in parcels]
        return self._outbox.publish(self._consumer.task_consumer.channel, parcels, self._return_queue)

    def _publish_one(
        self,
        request: Any,
        parcel: tuple[Parcel, float, Mapping[str, Any]],
        declaration: Callable[[str], Any],
    ) -> None:
        for missing in self._outbox.publish(request.message.channel, [parcel], declaration):
            raise NoSuchQueue(missing)

    def _as_settings_say(self, name: str) -> Any:
        """A queue as the app's settings have it, without a trace in ``app.amqp.queues``: None if they have none."""
        queues = self._app.amqp.queues
        if name in queues:
            return queues[name]
        return self._app.amqp.Queues((queues.new_missing(name),))[name] if queues.create_missing else None

    # -- Acknowledge -----------------------------------------------------------------------------------------------

    def acknowledge(self, request: Any) -> None:
        """Acknowledge a message that waits elsewhere from now on; the broker hears of it in a moment.

        On Redis together with others: there an acknowledgement costs a quarter of what it takes to park a message.
        """
        message = request.message
        if type(getattr(message.channel, "qos", None)) is not RedisQoS:
            request.acknowledge()
        elif not request.acknowledged:
            request.acknowledged = True
            virtual.QoS.ack(message.channel.qos, message.delivery_tag)  # kombu: another may come in now
            self._unacknowledged.append(message)
            if len(self._unacknowledged) >= MOST_AT_ONCE:
                self._acknowledge_all()
            elif self._acknowledge_later is None:
                self._acknowledge_later = self._timers.call_after(AT_LATEST, self._acknowledge_all)
        state.task_ready(request)

    def _acknowledge_all(self) -> None:
        """What kombu's QoS.ack does for Redis, for many messages at once."""
        if self._acknowledge_later is not None:
            self._acknowledge_later()
            self._acknowledge_later = None
        messages, self._unacknowledged = self._unacknowledged, []
        if not messages:
            return
        qos = messages[0].channel.qos
        tags = [message.delivery_tag for message in messages]
        try:
            with qos.pipe_or_acquire() as pipe:
                pipe.zrem(qos.unacked_index_key, *tags).hdel(qos.unacked_key, *tags).execute()
        except BaseException:  # also of a greenlet that is killed
            self._unacknowledged[:0] = messages
            self._acknowledge_later = self._timers.call_after(1.0, self._acknowledge_all)
            raise
        for message in messages:
            message._state = "ACK"

    def close(self) -> None:
        """Tell the broker what it has not been told yet; if that fails it hands out once more what is parked."""
        try:
            self._acknowledge_all()
        except Exception as error:
            logger.debug("not acknowledged: %r", error)
            if self._acknowledge_later is not None:
                self._acknowledge_later()
        self._unacknowledged, self._acknowledge_later = [], None
