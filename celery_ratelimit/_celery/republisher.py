"""Messages that leave a worker for the broker: published first, then acknowledged here.

What is relied on; line numbers are of Celery and kombu 5.7.0:

* ``state.task_ready`` (celery/worker/state.py 215): a request has ended here.
* ``AMQP.Queues`` makes queues as the app's settings say, ``Queues.new_missing`` one that is not named in the settings
  (celery/app/amqp.py 317 and 235).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from celery.worker import state

from .acknowledgements import Acknowledgements
from .broker import Broker
from .message_key import stored_id
from .publisher import NoSuchQueue, Publisher
from .saved_message import Parcel, parcel_of

__all__ = ["Republisher"]


class Republisher:
    """What one worker publishes again, and what it need not hold any more.

    Args:
        consumer: Celery's.
        broker: its broker.
        acknowledgements: its acknowledgements.
        publisher: publishes.
        return_queue: how this worker declares a queue that its tasks come back by; None: that is not its part.
    """

    def __init__(
        self,
        consumer: Any,
        broker: Broker,
        acknowledgements: Acknowledgements,
        publisher: Publisher,
        return_queue: Callable[[str], Any],
    ) -> None:
        self._consumer, self._app, self._broker = consumer, consumer.app, broker
        self._acknowledgements, self._publisher, self._return_queue = acknowledgements, publisher, return_queue

    # -- Publish ---------------------------------------------------------------------------------------------------

    def send_back(
        self, request: Any, queue: str, return_queue: str, delay: float, slot_us: int | None, unconfirmed_parks: int = 0
    ) -> None:
        """Publish the message again as it is, to come back after ``delay`` seconds, and acknowledge this copy.

        In that order: a crash between the two leaves a duplicate with the same id, never a gap. Raises what the publish
        raises; the message then is unacknowledged still. ``slot_us``: its slot by the store's clock, if that is known.
        ``unconfirmed_parks``: see :func:`~.saved_message.unconfirmed_parks_in`.
        """
        slot = {} if slot_us is None else {"slot": slot_us}
        parcel = parcel_of(request, queue, return_queue, stored_id(request, queue))
        self._publish_one(request, (parcel, delay, {"again": unconfirmed_parks or True, **slot}), self._return_queue)
        self.acknowledge(request)

    def redirect(self, request: Any, queue: str) -> None:
        """Publish the message as the user has sent it to another queue, and acknowledge this copy.

        A queue that is not there is made, as it would be for a task that is sent to it.
        """
        self._publish_one(request, (parcel_of(request, queue, ""), 0.0, {}), self._as_settings_say)
        self.acknowledge(request)

    def publish(self, parcels: Sequence[tuple[Parcel, float, Mapping[str, Any]]]) -> set[str]:
        """Publish messages that were parked, with their delays and markers; see :func:`~.parcel.publish`.

        Returns:
            Queues that the broker does not have; what was to go there was not published.
        """
        if self._broker.limits_eta_tasks:
            parcels = [(parcel, 0.0, marker) for parcel, _, marker in parcels]
        return self._publisher.publish(self._consumer.task_consumer.channel, parcels, self._return_queue)

    def _publish_one(
        self,
        request: Any,
        parcel: tuple[Parcel, float, Mapping[str, Any]],
        declaration: Callable[[str], Any],
    ) -> None:
        for missing in self._publisher.publish(request.message.channel, [parcel], declaration):
            raise NoSuchQueue(missing)

    def _as_settings_say(self, name: str) -> Any:
        """A queue as the app's settings have it, without a trace in ``app.amqp.queues``: None if they have none."""
        queues = self._app.amqp.queues
        if name in queues:
            return queues[name]
        return self._app.amqp.Queues((queues.new_missing(name),))[name] if queues.create_missing else None

    # -- Acknowledge -----------------------------------------------------------------------------------------------

    def acknowledge(self, request: Any) -> None:
        """Acknowledge a message that waits elsewhere from now on, and end its request."""
        self._acknowledgements.acknowledge(request)
        state.task_ready(request)
