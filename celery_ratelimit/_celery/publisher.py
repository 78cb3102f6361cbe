"""Publishes messages as they were: on RabbitMQ on a channel of their own, and only to queues that exist.

Nothing else is on that channel, so that a refusal by the broker does not end the worker's consumers. A publishing has
succeeded when the broker has answered the next question on its channel: it handles a channel's requests in order, says
a refusal by closing the channel, and returns a message that no queue would get.

What is relied on, of py-amqp 5.4:

* ``AbstractChannel._callbacks`` (amqp/abstract_channel.py 38), and that ``send_method`` (61) does not wait unless told.
* ``Channel.collect`` (amqp/channel.py 154); a call that waits for an answer then is told that it will not come
  (abstract_channel.py 100).
* ``Channel.events["basic_return"]`` (channel.py 2012), for what was published as ``mandatory``.

Of Celery 5.7.0:

* ``state.task_ready`` (celery/worker/state.py 215): a request has ended here.
* ``AMQP.Queues`` makes queues as the app's settings say, ``Queues.new_missing`` one that is not named in the settings
  (celery/app/amqp.py 317 and 235).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import amqp
from amqp import spec
from amqp.exceptions import AccessRefused, ChannelError, NotFound, RecoverableConnectionError, error_for_code
from celery.worker import state

from .broker import Broker
from .bulk_acknowledge import BulkAcknowledge
from .message_fields import stored_id
from .publish_again import publish_all
from .requests import deadline_of
from .saved_message import Parcel, ReturnAddress, marker_in_headers, parcel_of

if TYPE_CHECKING:
    from .return_addresses import ReturnAddresses

__all__ = ["NoSuchQueue", "Publisher", "Republisher", "publish_on"]

#: A message, its delay in seconds, and additions to its marker.
Parcels = Sequence[tuple[Parcel, float, Mapping[str, Any]]]
#: Declares a queue by its name. False: another worker has to.
Declare = Callable[[str], bool]


class NoSuchQueue(Exception):
    """The broker has no queue of that name, and another worker has to declare it."""

    def __init__(self, name: str) -> None:
        super().__init__(f"the broker has no queue {name!r}: no worker that would consume it has ever been there")


def publish_on(channel: Any, parcels: Parcels) -> set[str]:
    """Publish messages on a channel of their own; returns the queues that do not exist, on AMQP."""
    if isinstance(channel, amqp.Channel):
        return _Channel(channel).publish(parcels)
    publish_all(channel, parcels)
    return set()


class Republisher:
    """Publishes messages of this worker again, then acknowledges them.

    Attributes:
        now: the clock of deadlines, in seconds since 1970.
    """

    def __init__(
        self,
        consumer: Any,
        broker: Broker,
        acknowledgements: BulkAcknowledge,
        publisher: Publisher,
        addresses: ReturnAddresses,
    ) -> None:
        self._consumer, self._broker = consumer, broker
        self._acknowledgements, self._publisher, self._addresses = acknowledgements, publisher, addresses
        self.now: Callable[[], float] = time.time

    def send_back(self, request: Any, queue: str, back: ReturnAddress, delay: float, slot_us: int | None) -> None:
        """Publish the message to return after ``delay`` seconds, and acknowledge this copy.

        In that order: a crash between the two leaves a duplicate with the same id, never a gap. Raises what the publish
        raises; the message then is still unacknowledged. ``slot_us``: its slot by the store's clock, if it has one.
        """
        slot = {} if slot_us is None else {"slot": slot_us}
        parcel = parcel_of(request, queue, back, stored_id(request, queue), deadline_of(request, back.ttl, self.now))
        self._republish(request, parcel, delay, {"again": True, **slot}, self._addresses.declare)

    def redirect(self, request: Any, queue: str) -> None:
        """Publish the message as its sender did, to another queue, and acknowledge this copy.

        A queue that does not exist is declared, as it would be for a task that is sent to it.
        """
        self._republish(request, parcel_of(request, queue, None), 0.0, {}, self._declare_by_settings)

    def publish(self, parcels: Parcels) -> set[str]:
        """Publish messages that were parked; returns the queues that do not exist, to which none was published."""
        if self._broker.limits_eta_tasks:
            parcels = [(parcel, 0.0, marker) for parcel, _, marker in parcels]
        for name in {parcel["to"] for parcel, _, _ in parcels}:
            self._addresses.note_use(name)
        return self._publish(self._consumer.task_consumer.channel, parcels, self._addresses.declare)

    def acknowledge(self, request: Any) -> None:
        """Acknowledge a message that waits elsewhere from now on, and end its request."""
        self._acknowledgements.acknowledge(request)
        state.task_ready(request)

    def _republish(
        self, request: Any, parcel: Parcel, delay: float, marker: Mapping[str, Any], declare: Declare
    ) -> None:
        # Its own channel, unless it was acknowledged before its task ran: that one may be of an earlier connection.
        channel = self._consumer.task_consumer.channel if request.acknowledged else request.message.channel
        for missing in self._publish(channel, [(parcel, delay, marker)], declare):
            raise NoSuchQueue(missing)
        self.acknowledge(request)

    def _publish(self, channel: Any, parcels: Parcels, declare: Declare) -> set[str]:
        if any(parcel["expires"] is not None for parcel, _, _ in parcels):
            behind = self.now() - time.time()  # this machine's clock, by which a message gets its time to live
            parcels = [
                ({**parcel, "expires": parcel["expires"] and parcel["expires"] - behind}, delay, marker)
                for parcel, delay, marker in parcels
            ]
        try:
            return self._publisher.publish(channel, parcels, declare)
        except AccessRefused as error:
            for parcel in [parcel for parcel, _, _ in parcels if parcel.get("exchange")]:
                self._addresses.refuse(marker_in_headers(parcel["headers"])["queue"], error)
            raise

    def _declare_by_settings(self, name: str) -> bool:
        """Declare a queue as the app's settings have it, without a trace in ``app.amqp.queues``, if they have one."""
        settings = self._consumer.app.amqp
        queues = settings.queues
        if name not in queues and not queues.create_missing:
            return False
        queue = queues[name] if name in queues else settings.Queues((queues.new_missing(name),))[name]
        if refusal := self._publisher.refusal_of(lambda channel: queue.bind(channel).queue_declare()):
            raise refusal
        return True


class Publisher:
    """Publishes for one worker: without an event loop on connections of the app's producers, as a publisher reads."""

    def __init__(self, app: Any, broker: Broker) -> None:
        self._app, self._broker = app, broker
        self._free: list[_Channel] = []
        self._connection: Any = None  # of the free channels

    def publish(self, channel: Any, parcels: Parcels, declare: Declare) -> set[str]:
        """Publish messages; on another broker than AMQP on ``channel``.

        A queue that does not exist is declared, if ``declare`` can. Returns the other ones, to which no message was
        published.
        """
        if not self._broker.on_amqp:
            publish_all(channel, parcels)
            return set()
        missing = self._publish(parcels)
        if declared := {name for name in missing if declare(name)}:
            missing -= declared
            missing |= self._publish([each for each in parcels if each[0]["to"] in declared])
        return missing

    def _publish(self, parcels: Parcels) -> set[str]:
        try:
            with self._channel(self._broker.no_event_loop) as own:
                return own.publish(parcels)
        except NotFound:  # an exchange: of several messages those before it were published
            if len(parcels) > 1:
                raise
            return {parcels[0][0]["to"]}

    def refusal_of(self, step: Callable[[Any], object], *, reads: bool = False) -> Exception | None:
        """Ask something of the broker; returns its refusal. ``reads``: called by the thread that reads."""
        on_amqp, connection = self._broker.on_amqp, self._broker.connection
        try:
            if on_amqp:
                with self._channel(self._broker.no_event_loop and not reads) as own:
                    step(own.channel)
            else:
                step(connection.default_channel)
        except Exception as error:  # other transports raise what their clients do
            if not isinstance(error, ChannelError) and (on_amqp or isinstance(error, connection.connection_errors)):
                raise
            return error
        return None

    @contextlib.contextmanager
    def _channel(self, from_pool: bool) -> Iterator[_Channel]:
        """A channel that is not in use: while one waits for an answer, messages come in that are published again."""
        if from_pool:
            with self._app.producer_pool.acquire(block=True) as producer:
                yield _Channel(producer.channel)
            return
        connection = self._broker.connection
        if connection is not self._connection:
            self._connection, self._free = connection, []
        own = self._free.pop() if self._free else OwnChannel(connection.channel())
        try:
            yield own
        except BaseException as error:
            own.discard()
            if own.error is not None and isinstance(error, RecoverableConnectionError):
                raise own.error from None  # the broker has closed this channel alone
            raise
        if own.error is None:
            self._free.append(own)


class _Channel:
    """An AMQP channel to publish on, of a connection of its own."""

    error: Exception | None = None

    def __init__(self, channel: Any) -> None:
        self.channel = channel
        self._returned: set[str] = set()

    def publish(self, parcels: Parcels) -> set[str]:
        """Publish messages; returns the queues that do not exist. Raises the broker's refusal of a message."""
        handlers = self.channel.events["basic_return"]
        handlers.add(self._on_return)
        try:
            publish_all(self.channel, parcels, mandatory=True)
            self._confirm()
        finally:
            handlers.discard(self._on_return)
        returned, self._returned = self._returned, set()
        queues = {parcel.get("exchange") or parcel["to"]: parcel["to"] for parcel, _, _ in parcels}
        return {queues[each] for each in returned}

    def _on_return(self, error: Exception, exchange: str, routing_key: str, message: Any) -> None:
        self._returned.add(exchange or routing_key)

    def _confirm(self) -> None:
        """Wait until the broker has handled all that was published: any question will do."""
        self.channel.basic_qos(0, 0, False)

    def discard(self) -> None:
        """The channel is not used again."""


class OwnChannel(_Channel):
    """A channel on the worker's connection, from which other code reads as well.

    An answer of the broker may be read by any of it: callbacks note it here, for the call that waits.
    """

    def __init__(self, channel: Any) -> None:
        super().__init__(channel)
        self._answered = False
        channel._callbacks[spec.Channel.Close] = self._on_close
        channel._callbacks[spec.Basic.QosOk] = self._on_answer

    def _confirm(self) -> None:
        self._answered = False
        self.channel.send_method(spec.Basic.Qos, "lBb", (0, 0, False))
        while not self._answered:
            connection = self.channel.connection
            if connection is None:
                raise RecoverableConnectionError("connection already closed")
            connection.drain_events()

    def _on_answer(self) -> None:
        self._answered = True

    def _on_close(self, code: int, text: str, class_id: int, method_id: int) -> None:
        self.error = error_for_code(code, text, (class_id, method_id), ChannelError)
        self.channel.send_method(spec.Channel.CloseOk)
        self.channel.collect()

    def discard(self) -> None:
        if self.channel.connection is not None:
            # No call waits: an answer to what was asked before may be on its way, and is discarded.
            self.channel.is_closing = True
            with contextlib.suppress(Exception):
                self.channel.send_method(spec.Channel.Close, "BsBB", (0, "", 0, 0))
