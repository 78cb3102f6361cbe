"""What ends a channel that the worker consumes on ends its connection, which Celery mends.

What is relied on, of py-amqp 5.4:

* ``Channel._on_close`` (amqp/channel.py 245) opens a channel again that the broker has closed, without its consumers,
  and raises an error of that channel out of whatever was just reading: Celery ends the worker with it, or a call that
  waits for an answer of another channel takes it for its own. ``_on_basic_cancel`` (1458): the same for a consumer.
* ``AbstractChannel._callbacks`` (amqp/abstract_channel.py 38): by method, what is called when the broker sends it.
* ``Connection.sock`` (amqp/connection.py): reading from one that was shut down is an ``OSError``, which Celery's loops
  take for what it is (celery/worker/loops.py), whatever has become of the error that was raised first.

Of kombu 5.7:

* ``Channel.close`` (kombu/transport/redis.py 1890) first reads what was asked for by BRPOP. Of two channels of a
  connection that is lost only the one that was told so has nothing to read; the other fails there, and would keep
  what it has.
* What is read then is put back by a channel that is in ``Transport.channels``, if there is one
  (``_reject_inbound_message``, kombu/transport/virtual/base.py 1029); ``close_connection`` (988) takes each out before
  it closes it, so that the message which the last one reads was lost.
"""

from __future__ import annotations

import contextlib
import socket
from typing import Any

import amqp
from amqp import spec
from amqp.exceptions import ConsumerCancelled, RecoverableConnectionError

__all__ = ["end_connection_with"]


def end_connection_with(channel: Any) -> None:
    """From now on the connection ends when the broker closes ``channel``, or cancels one of its consumers (AMQP).

    And ``channel`` ends when the connection is lost: it gives back what it has (Redis).
    """
    if hasattr(channel, "_brpop_read"):
        _close_whole(channel)
    if not isinstance(channel, amqp.Channel):
        return
    callbacks: dict[Any, Any] = channel._callbacks
    on_close, on_cancel = callbacks[spec.Channel.Close], callbacks[spec.Basic.Cancel]

    def closed(code: int, text: str, class_id: int, method_id: int) -> None:
        connection = channel.connection
        if channel.is_closing or connection.is_closing:
            on_close(code, text, class_id, method_id)
            return
        _hang_up(connection)
        raise RecoverableConnectionError(text, (class_id, method_id), reply_code=code)

    def cancelled(tag: str) -> None:
        try:
            on_cancel(tag)
        except ConsumerCancelled:
            _hang_up(channel.connection)
            raise

    callbacks[spec.Channel.Close], callbacks[spec.Basic.Cancel] = closed, cancelled


def _close_whole(channel: Any) -> None:
    close = channel.close

    def close_whole() -> None:
        transport = channel.connection
        if transport is not None and channel not in transport.channels:
            transport.channels.append(channel)  # until it is closed: what it reads now is put back
        try:
            close()
        except channel.connection_errors:
            close()  # there is nothing to be read any more

    channel.close = close_whole


def _hang_up(connection: Any) -> None:
    """The next read is told that the connection is lost."""
    with contextlib.suppress(OSError, *connection.connection_errors):
        connection.sock.shutdown(socket.SHUT_RDWR)
