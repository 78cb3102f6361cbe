"""Receives more messages of a queue together, where messages from it have to wait for something.

One by one each costs a turn of the worker's loop, a ``BRPOP``, and a round trip in which kombu notes it. Here a script
at the broker takes them, and notes them in the same step. Then each goes its usual way.

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
from .message_key import RedisQoS

__all__ = ["MOST", "BulkReceive"]

logger = logging.getLogger("celery_ratelimit")

#: Seconds for which a broker is not asked that does not run scripts, or does not at the moment.
AGAIN = 60.0
#: Seconds for which no message is looked for where none was behind another: at first, and after many times.
FIRST_REST, LAST_REST = 0.01, 0.64
#: Messages that come in together, and bytes after which there are no more: some milliseconds of the worker's loop.
MOST, BYTES = 12, 200_000


class BulkReceive:
    """Takes what comes in together.

    Args:
        broker: the worker's.

    Attributes:
        receiving: messages that come in together are coming to the gate; the first is the one whose coming was told.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._source = ""
        self._after: Callable[[], None] = lambda: None
        self._wanted: Any = None
        self._most = MOST
        self._runs_again = 0.0  # when a broker is asked again that did not run the script
        self._rests: dict[str, tuple[float, float]] = {}  # of queues: until when, and the next
        self._reading: Any = None  # the channel that is just delivering a message
        self.receiving = False

    def configure(self, source: str, after: Callable[[], None]) -> None:
        """``source``: of the script ``take``; ``after`` is called when all that came together are in the gate."""
        self._source, self._after = source, after

    def request_more(self, message: Any, most: int = MOST) -> None:
        """The messages behind one probably have its fate: so many of them may be received together with it.

        To be called while it is delivered, or it means nothing.
        """
        now = time.monotonic()
        if self._reading is None or message.channel is not self._reading or now < self._runs_again:
            return
        queue = message.ratelimit_queue
        if queue in self._rests and now < self._rests[queue][0]:
            return
        if self._room_in(self._reading, queue, most) > 0:
            self._wanted, self._most, self.receiving = message, most, True

    def watch(self, channel: Any) -> None:
        """A channel by which tasks come in."""
        if not self._source or self._broker.no_event_loop or type(getattr(channel, "qos", None)) is not RedisQoS:
            return
        read, script = channel.handlers["BRPOP"], None

        def read_and_take(**options: Any) -> Any:
            nonlocal script
            self._reading = channel
            try:
                result = read(**options)
                self._reading, message = None, self._wanted
                if message is not None:
                    if script is None:
                        with channel.conn_or_acquire() as client:
                            script = client.register_script(self._source)
                    self._take(channel, script, message)
                return result
            finally:
                self._reading = self._wanted = None
                if self.receiving:
                    self.receiving = False
                    self._after()

        channel.handlers["BRPOP"] = read_and_take

    def _room_in(self, channel: Any, queue: str, most: int) -> int:
        """How many messages of a queue may come in together."""
        qos = channel.qos
        if queue not in channel.active_queues or "can_consume" in vars(qos):  # worker_disable_prefetch: one by one
            return 0
        estimate = qos.can_consume_max_estimate()
        return min(MOST, most) if estimate is None else min(MOST, most, estimate)

    def _take(self, channel: Any, script: Any, message: Any) -> None:
        """More messages that were behind one in its queue."""
        qos, queue = channel.qos, message.ratelimit_queue
        number = self._room_in(channel, queue, self._most)
        if number < 1:
            return
        of_queue = channel._q_for_pri(queue, channel._get_message_priority(message._raw, reverse=False))
        # A client with a prefix puts it before the first key of a script alone.
        prefix = channel.global_keyprefix
        keys = of_queue, prefix + qos.unacked_key, prefix + qos.unacked_index_key
        try:
            said = script(keys=keys, args=(number, BYTES, time.time()))
        except channel.ResponseError as error:
            logger.debug("messages come in one by one for a while: the broker does not run the script: %r", error)
            self._runs_again = time.monotonic() + AGAIN
            return
        if said:
            self._rests.pop(queue, None)
            self._deliver(channel, queue, of_queue, list(zip(said[::2], said[1::2], strict=True)))
        else:
            _, rest = self._rests.get(queue, (0.0, FIRST_REST))
            self._rests[queue] = time.monotonic() + rest, min(2 * rest, LAST_REST)

    def _deliver(self, channel: Any, queue: str, of_queue: str, taken: Sequence[tuple[bytes, bytes]]) -> None:
        qos = channel.qos
        left = deque(taken)
        append, came = qos.append, set()

        def append_here(message: Any, tag: str) -> None:
            came.add(tag)
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
                if bytes_to_str(tag) not in came:  # it is no message, which was logged: it will not be acknowledged
                    with qos.pipe_or_acquire() as pipe:
                        pipe.zrem(qos.unacked_index_key, tag).hdel(qos.unacked_key, tag).execute()
        finally:
            qos.append = append
            self._put_back(channel, of_queue, left)

    def _put_back(self, channel: Any, of_queue: str, left: Sequence[tuple[bytes, bytes]]) -> None:
        """To where they were, as they were."""
        qos = channel.qos
        if left:
            with qos.pipe_or_acquire() as pipe:
                for tag, text in reversed(left):
                    pipe.zrem(qos.unacked_index_key, tag).hdel(qos.unacked_key, tag).rpush(of_queue, text)
                pipe.execute()
