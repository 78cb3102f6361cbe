"""Publishes messages as they were: on RabbitMQ on a channel of its own, and to queues that are there.

Nothing else is on that channel, so that nothing which the broker refuses there ends what is consumed. A publishing has
succeeded when the broker has answered the next question on it: it takes up what comes by a channel in its order, says
what it refuses by closing the channel, and returns what no queue would get.

What is relied on, of py-amqp 5.4:

* ``AbstractChannel._callbacks`` (amqp/abstract_channel.py 38), and that ``send_method`` (61) does not wait unless told.
* ``Channel.collect`` (amqp/channel.py 154); a call that waits for an answer then is told that it will not come
  (abstract_channel.py 100).
* ``Channel.events["basic_return"]`` (channel.py 2012), for what was published as ``mandatory``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import amqp
from amqp import spec
from amqp.exceptions import ChannelError, PreconditionFailed, RecoverableConnectionError, error_for_code

from .broker import Broker
from .saved_message import Parcel, publish_all

__all__ = ["NoSuchQueue", "Publisher", "publish_on"]

#: A message, the seconds after which it is taken up, and what is added to its marker.
Parcels = Sequence[tuple[Parcel, float, Mapping[str, Any]]]


class NoSuchQueue(Exception):
    """The broker has no queue of that name, and how it should be declared is its own worker's to say."""

    def __init__(self, name: str) -> None:
        super().__init__(f"the broker has no queue {name!r}: no worker that would consume it has ever been there")


def publish_on(channel: Any, parcels: Parcels) -> set[str]:
    """Publish messages on a channel of its own; returns the queues that are not there, on AMQP."""
    if isinstance(channel, amqp.Channel):
        return _Channel(channel).publish(parcels)
    publish_all(channel, parcels)
    return set()


class Publisher:
    """Where messages go out of a worker.

    Args:
        app: the app; its producers' connections are used where the worker has no event loop: publishers read.
        broker: the worker's.
    """

    def __init__(self, app: Any, broker: Broker) -> None:
        self._app, self._broker = app, broker
        self._free: list[_Channel] = []
        self._of: Any = None

    def publish(self, channel: Any, parcels: Parcels, declaration: Callable[[str], Any]) -> set[str]:
        """Publish messages; on another broker than AMQP on ``channel``.

        A queue that is not there is declared as ``declaration`` says; None: that is not this worker's part.

        Returns:
            The queues that are not there; none of what was to go to them was published.
        """
        if not self._broker.on_amqp:
            publish_all(channel, parcels)
            return set()
        with self._channel(self._broker.no_event_loop) as own:
            missing = own.publish(parcels)
            found = {name: declaration(name) for name in missing}
            declared = [name for name, queue in found.items() if queue is not None]
            for name in declared:
                found[name].bind(own.channel).queue_declare()
            if declared:
                missing -= set(declared)
                missing |= own.publish([each for each in parcels if each[0]["to"] in declared])
            return missing

    def declare(self, queue: Any) -> bool:
        """Declare a queue, on AMQP; False: it is there, declared otherwise."""
        try:
            with self._channel(from_pool=False) as own:  # the thread that reads sees to what is consumed
                queue.bind(own.channel).queue_declare()
        except PreconditionFailed:
            return False
        return True

    @contextlib.contextmanager
    def _channel(self, from_pool: bool) -> Iterator[_Channel]:
        """A channel that is not in use: while one waits for an answer, other messages come in, and go out again."""
        if from_pool:
            with self._app.producer_pool.acquire(block=True) as producer:
                yield _Channel(producer.channel)
            return
        connection = self._broker.connection
        if connection is not self._of:
            self._of, self._free = connection, []
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
        """Publish messages; returns the queues that are not there. Raises what the broker says to one of them."""
        handlers = self.channel.events["basic_return"]
        handlers.add(self._on_return)
        try:
            publish_all(self.channel, parcels, mandatory=True)
            self._settle()
        finally:
            handlers.discard(self._on_return)
        returned, self._returned = self._returned, set()
        return returned

    def _on_return(self, error: Exception, exchange: str, routing_key: str, message: Any) -> None:
        self._returned.add(routing_key)

    def _settle(self) -> None:
        """Wait until the broker has seen to all that was published: any question will do."""
        self.channel.basic_qos(0, 0, False)

    def discard(self) -> None:
        """It is not used again."""


class OwnChannel(_Channel):
    """The same on the worker's connection, where others read as well.

    What the broker says of this channel is for it alone: the reader notes it, and the call that waits finds it.
    """

    def __init__(self, channel: Any) -> None:
        super().__init__(channel)
        self._answered = False
        channel._callbacks[spec.Channel.Close] = self._on_close
        channel._callbacks[spec.Basic.QosOk] = self._on_answer

    def _settle(self) -> None:
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
