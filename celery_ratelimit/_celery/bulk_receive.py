"""Receives several messages of a queue at once, where messages from it have to wait for something.

One by one each costs a turn of the worker's loop, a ``BRPOP``, and a round trip in which kombu notes it. Here a script
at the broker takes them, and notes them in the same step. Then each is delivered as usual.

What is relied on; line numbers are of kombu 5.7.0:

* ``Channel.handlers["BRPOP"]`` (kombu/transport/redis.py 1188): what the event loop calls when a message is there.
* ``Channel._q_for_pri`` and ``_get_message_priority``: the list that a message was in (``_put``, 1690), of which
  messages are taken from the right end.
* ``QoS.append`` (477): how a message that has come in is noted; ``virtual.QoS.append``: here alone.
* ``Transport._deliver`` (kombu/transport/virtual/base.py 1009): what becomes of a message that was read.
* ``QoS.can_consume_max_estimate`` (virtual/base.py): how many more may come in; ``worker_disable_prefetch`` puts
  another ``can_consume`` beside it (celery/worker/consumer/tasks.py 83).
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from kombu.transport import virtual
from kombu.utils.encoding import bytes_to_str
from kombu.utils.json import loads

from .broker import Broker
from .message_fields import RedisQoS

__all__ = ["MAX_BYTES", "MAX_MESSAGES", "BulkReceive"]

logger: logging.Logger = logging.getLogger("celery_ratelimit")

#: Seconds until the next try at a broker that did not run the script.
RETRY_DELAY = 60.0
#: Seconds without a request for more after no message was behind another: at first, and at most.
FIRST_PAUSE, MAX_PAUSE = 0.01, 0.64
#: Messages received at once, and bytes after which there are no more: some milliseconds of the worker's loop.
MAX_MESSAGES, MAX_BYTES = 12, 200_000


class BulkReceive:
    """Receives messages at once, on a worker's channels on Redis.

    Attributes:
        receiving: whether messages are being delivered that were received at once, from the first on.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._source = ""
        self._on_delivered: Callable[[], None] = lambda: None
        self._first: Any = None  # the message behind which more were requested
        self._most = MAX_MESSAGES
        self._retry_at = 0.0
        self._pauses: dict[str, tuple[float, float]] = {}  # of queues: until when, and the length of the next
        self._reading: Any = None  # the channel that is delivering a message
        self.receiving: bool = False

    def configure(self, source: str, on_delivered: Callable[[], None]) -> None:
        """Set the source of the script ``take``, and a function to be called when a bulk is in the gate."""
        self._source, self._on_delivered = source, on_delivered

    def request_more(self, message: Any, most: int = MAX_MESSAGES) -> None:
        """Receive up to ``most`` messages behind this one, which will probably be treated alike.

        Without effect except while ``message`` is being delivered.
        """
        now = time.monotonic()
        if self._reading is None or message.channel is not self._reading or now < self._retry_at:
            return
        queue = message.ratelimit_queue
        if queue in self._pauses and now < self._pauses[queue][0]:
            return
        if self._room_in(self._reading, queue, most) > 0:
            self._first, self._most = message, most
            self.receiving = True

    def watch(self, channel: Any) -> None:
        """Receive at once on this channel."""
        if not self._source or self._broker.no_event_loop or type(getattr(channel, "qos", None)) is not RedisQoS:
            return
        read, script = channel.handlers["BRPOP"], None

        def read_and_take(**options: Any) -> Any:
            nonlocal script
            self._reading = channel
            try:
                result = read(**options)
                self._reading, message = None, self._first
                if message is not None:
                    if script is None:
                        with channel.conn_or_acquire() as client:
                            script = client.register_script(self._source)
                    self._take(channel, script, message)
                return result
            finally:
                self._reading = self._first = None
                if self.receiving:
                    self.receiving = False
                    self._on_delivered()

        channel.handlers["BRPOP"] = read_and_take

    def _room_in(self, channel: Any, queue: str, most: int) -> int:
        """How many messages of a queue may be received at once."""
        qos = channel.qos
        if queue not in channel.active_queues or "can_consume" in vars(qos):  # worker_disable_prefetch: one by one
            return 0
        estimate = qos.can_consume_max_estimate()
        return min(MAX_MESSAGES, most) if estimate is None else min(MAX_MESSAGES, most, estimate)

    def _take(self, channel: Any, script: Any, message: Any) -> None:
        """Take the messages that were behind one in its queue, and deliver them."""
        qos, queue = channel.qos, message.ratelimit_queue
        number = self._room_in(channel, queue, self._most)
        if number < 1:
            return
        of_queue = channel._q_for_pri(queue, channel._get_message_priority(message._raw, reverse=False))
        # A client with a prefix puts it before the first key of a script alone.
        prefix = channel.global_keyprefix
        keys = of_queue, prefix + qos.unacked_key, prefix + qos.unacked_index_key
        try:
            # The wall clock, as kombu scores unacknowledged messages by it (kombu/transport/redis.py, QoS.append).
            taken = script(keys=keys, args=(number, MAX_BYTES, time.time()))
        except channel.ResponseError as error:
            logger.debug("messages come in one by one for a while: the broker does not run the script: %r", error)
            self._retry_at = time.monotonic() + RETRY_DELAY
            return
        if taken:
            self._pauses.pop(queue, None)
            self._deliver(channel, queue, of_queue, list(zip(taken[::2], taken[1::2], strict=True)))
        else:
            _, pause = self._pauses.get(queue, (0.0, FIRST_PAUSE))
            self._pauses[queue] = time.monotonic() + pause, min(2 * pause, MAX_PAUSE)

    def _deliver(self, channel: Any, queue: str, of_queue: str, taken: Sequence[tuple[bytes, bytes]]) -> None:
        qos = channel.qos
        left = deque(taken)
        append, delivered = qos.append, set()

        def append_here(message: Any, tag: str) -> None:
            delivered.add(tag)
            virtual.QoS.append(qos, message, tag)  # the script has noted it

        qos.append = append_here
        try:
            while left and queue in channel.active_queues:  # else it is not consumed from now on
                try:
                    raw = loads(bytes_to_str(left[0][1]))
                except Exception as error:  # to be met where kombu reads it
                    logger.debug("a message cannot be read: %r", error)
                    break
                tag, _ = left.popleft()
                channel.connection._deliver(raw, queue)
                if bytes_to_str(tag) not in delivered:  # it is no message, which was logged: it is never acknowledged
                    with qos.pipe_or_acquire() as pipe:
                        pipe.zrem(qos.unacked_index_key, tag).hdel(qos.unacked_key, tag).execute()
        finally:
            qos.append = append
            if left:
                with qos.pipe_or_acquire() as pipe:  # back to where they were, as they were
                    for tag, text in reversed(left):
                        pipe.zrem(qos.unacked_index_key, tag).hdel(qos.unacked_key, tag).rpush(of_queue, text)
                    pipe.execute()
