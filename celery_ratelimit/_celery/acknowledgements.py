"""Acknowledgements on Redis, where each is a round trip: many go together, with what is said to the broker next.

kombu says two things of each message: that it has come (``QoS.append``), and that it is done (``QoS.ack``). Each waits
for an answer. What is done is said here with the next one that comes, or a moment later.

What is relied on; line numbers are those of Celery and kombu 5.7.0:

* ``kombu.transport.redis.QoS`` (kombu/transport/redis.py 467): what it does to acknowledge a message (499 and 518);
  ``append`` (477) does all that it has to say in one pipeline, which ``pipe_or_acquire`` (510) gives it.
* ``Request.acknowledged`` and ``Message._state``: whether a message is; ``Request._on_ack`` (celery/worker/request.py
  129), by which a request acknowledges its message when its task is accepted, or has ended (901).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

from kombu.transport import virtual

from .broker import Broker
from .message_key import RedisQoS
from .timers import Timers

__all__ = ["Acknowledgements"]

logger = logging.getLogger("celery_ratelimit")

#: Messages that are acknowledged at once, and seconds after which they are, be they fewer. Until then a worker that is
#: killed leaves them at the broker, too.
MOST_AT_ONCE, AT_LATEST = 20, 0.02
#: Seconds after which it is tried again, if the broker did not answer.
AGAIN = 1.0

#: Where the broker has what is unacknowledged: all channels of a connection have it there.
Keys = tuple[str, str]


class Acknowledgements:
    """What one worker has not told its broker yet.

    Args:
        broker: its broker.
        timers: its timers.
    """

    def __init__(self, broker: Broker, timers: Timers) -> None:
        self._broker, self._timers = broker, timers
        self._waiting: dict[Keys, list[Any]] = {}  # messages, by where the broker has them
        self._rings_at = float("inf")
        self._cancel: Callable[[], None] | None = None
        self._home = threading.get_ident()
        self._is_open = True

    def of_parked(self, request: Any) -> None:
        """Its message waits elsewhere from now on; the broker hears of it in a moment."""
        if type(_qos(request.message)) is not RedisQoS:
            request.acknowledge()
        elif not request.acknowledged:
            request.acknowledged = True
            self._later(request.message)

    def of_started(self, request: Any) -> None:
        """The request is about to start: from now on it acknowledges its message together with others.

        Where one thread has to do with the broker, while its loop runs: greenlets would come in between.
        """
        message, at_once = request.message, request._on_ack
        if self._broker.apart or type(_qos(message)) is not RedisQoS:
            return

        def acknowledge(*args: Any) -> None:
            if self._is_open and not message.channel.closed and threading.get_ident() == self._home:
                self._later(message)
            else:  # its pool has threads, or is waited for while the worker ends
                at_once(*args)

        request._on_ack = acknowledge

    def _later(self, message: Any) -> None:
        qos = _qos(message)
        virtual.QoS.ack(qos, message.delivery_tag)  # kombu: another may come in now
        self.take_along(qos)
        waiting = self._waiting.setdefault(_keys(qos), [])
        waiting.append(message)
        if len(waiting) >= MOST_AT_ONCE:
            self._say_all()
        else:
            self._ring(AT_LATEST)

    def take_along(self, qos: Any) -> None:
        """From now on a message that comes takes those along that are done."""
        if self._broker.apart or hasattr(qos, "ratelimit_takes_along"):
            return
        append, pipe_or_acquire = qos.append, qos.pipe_or_acquire

        def append_and_acknowledge(message: Any, delivery_tag: str) -> None:
            if _keys(qos) not in self._waiting:
                append(message, delivery_tag)
                return
            try:
                with self.said_along(qos) as tags, pipe_or_acquire() as pipe:
                    _acknowledge(qos, pipe, tags)
                    qos.pipe_or_acquire = lambda: nullcontext(pipe)
                    append(message, delivery_tag)
            finally:
                qos.pipe_or_acquire = pipe_or_acquire

        qos.ratelimit_takes_along = True
        qos.append = append_and_acknowledge

    @contextmanager
    def said_along(self, qos: Any) -> Iterator[list[str]]:
        """The delivery tags of those that are done, of which the broker is told in this block: by whichever channel
        they came.
        """
        keys = _keys(qos)
        messages = self._waiting.pop(keys, [])
        try:
            yield [message.delivery_tag for message in messages]
        except BaseException:  # also of a greenlet that is killed
            self._said_nothing_of(keys, messages)
            raise
        for message in messages:
            message._state = "ACK"

    # -- In a moment -----------------------------------------------------------------------------------------------

    def _ring(self, seconds: float) -> None:
        at = time.monotonic() + seconds
        if at < self._rings_at:
            self._stop_timer()
            self._rings_at, self._cancel = at, self._timers.call_after(seconds, self._on_time)

    def _on_time(self) -> None:
        self._rings_at, self._cancel = float("inf"), None
        self._say_all()

    def _stop_timer(self) -> None:
        if self._cancel is not None:
            self._cancel()
        self._rings_at, self._cancel = float("inf"), None

    def _say_all(self) -> None:
        """What kombu's QoS.ack does, for many messages at once."""
        for messages in list(self._waiting.values()):
            qos = _qos(messages[0])
            with self.said_along(qos) as tags, qos.pipe_or_acquire() as pipe:
                _acknowledge(qos, pipe, tags)
                pipe.execute()

    def _said_nothing_of(self, keys: Keys, messages: list[Any]) -> None:
        if messages:
            self._waiting[keys] = [*messages, *self._waiting.get(keys, ())]
            self._ring(AGAIN)

    def open(self) -> None:
        """The worker's loop runs, or will in a moment."""
        self._is_open = True

    def close(self) -> None:
        """Tell the broker what it has not been told yet; if that fails it hands out once more what is parked.

        Until :meth:`open` whoever ends tells it himself: the worker ends, or its connection is lost.
        """
        self._is_open = False
        try:
            self._say_all()
        except Exception as error:
            logger.debug("not acknowledged: %r", error)
        self._waiting.clear()
        self._stop_timer()


def _qos(message: Any) -> Any:
    return getattr(message.channel, "qos", None)


def _keys(qos: Any) -> Keys:
    keys: Keys | None = getattr(qos, "ratelimit_keys", None)
    if keys is None:
        keys = qos.ratelimit_keys = qos.unacked_key, qos.unacked_index_key  # kombu looks for them each time
    return keys


def _acknowledge(qos: Any, pipe: Any, tags: Sequence[str]) -> None:
    pipe.zrem(qos.unacked_index_key, *tags).hdel(qos.unacked_key, *tags)
