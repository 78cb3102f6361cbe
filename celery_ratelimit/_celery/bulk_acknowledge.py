"""Acknowledges the messages of parked tasks together: on Redis each acknowledgement alone is a round trip.

All other acknowledgements are Celery's own.

What is relied on; line numbers are of Celery and kombu 5.7.0:

* ``kombu.transport.redis.QoS`` (kombu/transport/redis.py 467): what it does to acknowledge a message (499 and 518).
  ``virtual.QoS.ack`` is the part of it that makes room in the prefetch.
* ``Request.acknowledged`` and ``Message._state``: whether a message is acknowledged.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from kombu.transport import virtual

from .message_fields import RedisQoS
from .timers import Timers

__all__ = ["BulkAcknowledge"]

logger: logging.Logger = logging.getLogger("celery_ratelimit")

#: Messages that are acknowledged together, and seconds after which fewer are.
BATCH_SIZE, MAX_DELAY = 20, 0.02
#: Seconds until the next try after the broker did not answer.
RETRY_DELAY = 1.0


class BulkAcknowledge:
    """The messages of parked tasks that one worker has yet to acknowledge.

    A worker that is killed first leaves them at the broker. Their copies end when they are delivered again.
    """

    def __init__(self, timers: Timers) -> None:
        self._timers = timers
        self._messages: list[Any] = []
        self._cancel: Callable[[], None] | None = None

    def acknowledge(self, request: Any) -> None:
        """Acknowledge a request's message; on Redis in a moment, with others. The prefetch has room at once."""
        qos = getattr(request.message.channel, "qos", None)
        if type(qos) is not RedisQoS:
            request.acknowledge()
        elif not request.acknowledged:
            request.acknowledged = True
            virtual.QoS.ack(qos, request.message.delivery_tag)
            self._messages.append(request.message)
            if len(self._messages) >= BATCH_SIZE:
                self.flush()
            else:
                self._flush_in(MAX_DELAY)

    def flush(self) -> None:
        """Acknowledge all of them now. Raises what the broker's client raises; they are tried again then."""
        self._stop_timer()
        messages, self._messages = self._messages, []
        if not messages:
            return
        qos, tags = messages[-1].channel.qos, [message.delivery_tag for message in messages]
        try:
            with qos.pipe_or_acquire() as pipe:  # all channels of a connection share these keys
                pipe.zrem(qos.unacked_index_key, *tags).hdel(qos.unacked_key, *tags).execute()
        except BaseException:  # also in a greenlet that is killed
            self._messages = messages + self._messages
            self._flush_in(RETRY_DELAY)
            raise
        for message in messages:
            message._state = "ACK"

    def close(self) -> None:
        """The connection is lost, or the worker stops: acknowledge what the broker still accepts."""
        try:
            self.flush()
        except Exception as error:
            logger.debug("Could not acknowledge parked messages; their copies will end: %r", error)
        self._messages.clear()
        self._stop_timer()

    def _flush_in(self, seconds: float) -> None:
        if self._cancel is None:
            self._cancel = self._timers.call_after(seconds, self.flush)

    def _stop_timer(self) -> None:
        if self._cancel is not None:
            self._cancel()
            self._cancel = None
