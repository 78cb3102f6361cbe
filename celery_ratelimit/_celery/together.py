"""More messages of a queue come in together, where those that come from it have to wait for something.

One by one each costs a turn of the worker's loop, a ``BRPOP``, and a round trip in which kombu notes it. Here a script
at the broker takes them, and notes them in the same step. Then each goes its usual way.

What is relied on; line numbers are those of kombu 5.7.0:

* ``Channel.handlers["BRPOP"]`` (kombu/transport/redis.py 1188): what the event loop calls when a message is there.
* ``Channel._q_for_pri`` and ``_get_message_priority``: the list that a message was in (``_put``, 1690), of which
  messages are taken from the right end.
* ``QoS.append`` (477): how a message that has come in is noted; ``virtual.QoS.append`` and ``ack``: here alone.
* ``QoS.restore_by_tag`` (551): a message goes back to the end of its list from which it is taken.
* ``Transport._deliver`` (kombu/transport/virtual/base.py 1009): what becomes of a message that was read.
* ``QoS.can_consume_max_estimate`` (virtual/base.py): how many more may come in.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

from kombu.transport import virtual
from kombu.utils.encoding import bytes_to_str
from kombu.utils.json import loads

from .acknowledgements import Acknowledgements
from .broker import Broker
from .identity import RedisQoS

__all__ = ["MOST", "Together"]

logger = logging.getLogger("celery_ratelimit")

#: Messages that come in together, and bytes after which there are no more: some milliseconds of the worker's loop.
MOST, BYTES = 12, 200_000


class Together:
    """Takes what comes in together.

    Args:
        broker: the worker's.
        acknowledgements: of its messages.

    Attributes:
        is_at_it: messages that have come in together are coming to the gate.
    """

    def __init__(self, broker: Broker, acknowledgements: Acknowledgements) -> None:
        self._broker, self._acknowledgements = broker, acknowledgements
        self._source = ""
        self._after: Callable[[], None] = lambda: None
        self._wanted: Any = None
        self._most = MOST
        self.is_at_it = False

    def set_up(self, source: str, after: Callable[[], None]) -> None:
        """``source``: of the script ``take``; ``after`` is called when all that came together are in the gate."""
        self._source, self._after = source, after

    def want_more(self, message: Any, most: int = MOST) -> None:
        """What becomes of a message becomes of those behind it, probably: so many of them may come in together."""
        self._wanted, self._most = message, min(most, MOST)

    def watch(self, channel: Any) -> None:
        """A channel by which tasks come in."""
        if not self._source or self._broker.apart or type(getattr(channel, "qos", None)) is not RedisQoS:
            return
        read, script = channel.handlers["BRPOP"], None

        def read_and_take(**options: Any) -> Any:
            nonlocal script
            self._wanted = None
            result = read(**options)
            message, self._wanted = self._wanted, None
            if message is not None and message.channel is channel and self._source:
                if script is None:
                    with channel.conn_or_acquire() as client:
                        script = client.register_script(self._source)
                self._take(channel, script, message)
            return result

        channel.handlers["BRPOP"] = read_and_take

    def _take(self, channel: Any, script: Any, message: Any) -> None:
        """More of those that were behind a message in its queue."""
        qos, queue = channel.qos, message.ratelimit_queue
        most = qos.can_consume_max_estimate()
        number = self._most if most is None else min(self._most, most)
        if number < 1 or queue not in channel.active_queues:
            return
        of_queue = channel._q_for_pri(queue, channel._get_message_priority(message._raw, reverse=False))
        # A client with a prefix puts it before the first key of a script alone.
        prefix = channel.global_keyprefix
        keys = of_queue, prefix + qos.unacked_key, prefix + qos.unacked_index_key
        try:
            texts = script(keys=keys, args=(number, BYTES, time.time()))
        except channel.ResponseError as error:
            logger.debug("messages come in one by one, as the broker does not run the script: %r", error)
            self._source = ""
            return
        if texts:
            self._deliver(channel, queue, [loads(bytes_to_str(text)) for text in texts])

    def _deliver(self, channel: Any, queue: str, raws: Sequence[Any]) -> None:
        qos = channel.qos
        self._acknowledgements.take_along(qos)
        noted = iter(raws)
        append, self.is_at_it = qos.append, True
        qos.append = lambda message, tag: virtual.QoS.append(qos, message, tag)  # the script has noted it
        try:
            for raw in noted:
                channel.connection._deliver(raw, queue)
                if queue not in channel.active_queues:  # nobody consumes it from now on
                    break
        finally:
            self.is_at_it = False
            left = [channel.Message(raw, channel=channel) for raw in noted]
            for message in left:  # if the connection is lost, who closes it gives back what is noted
                qos.append(message, message.delivery_tag)
            qos.append = append
            self._after()
        for message in reversed(left):  # to where they were, which is not where kombu puts what is rejected
            qos.restore_by_tag(message.delivery_tag)
            virtual.QoS.ack(qos, message.delivery_tag)
