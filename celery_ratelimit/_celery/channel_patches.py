"""What the worker's channels do differently: losses, clients, and when they ask for messages.

What is relied on, of py-amqp 5.4:

* ``Channel._on_close`` (amqp/channel.py 245) opens a channel again that the broker has closed, without its consumers,
  and raises an error of that channel out of whatever was just reading: Celery ends the worker with it, or a call that
  waits for an answer of another channel takes it for its own. ``_on_basic_cancel`` (1458): the same for a consumer.
* ``AbstractChannel._callbacks`` (amqp/abstract_channel.py 38): by method, what is called when the broker sends it.
* ``Connection.sock`` (amqp/connection.py): reading from one that was shut down is an ``OSError``, which Celery's loops
  take for what it is (celery/worker/loops.py), whatever has become of the error that was raised first.

Of kombu and Celery 5.7:

* ``Connection.drain_events`` (kombu/connection.py 388) opens another connection, without a channel, once a write has
  failed (``Connection.connected``). The loop without events (celery/worker/loops.py 190) would read from it for ever:
  ``Consumer.perform_pending_operations``, called before, only logs such an error. ``OSError`` is what it looks for.
* ``Channel.close`` (kombu/transport/redis.py 1890) first reads what was asked for by BRPOP. Of two channels of a
  connection that is lost only the one that was told so has nothing to read; the other fails there, and would keep
  what it has.
* What is read then is put back by a channel that is in ``Transport.channels``, if there is one
  (``_reject_inbound_message``, kombu/transport/virtual/base.py 1029); ``close_connection`` (988) takes each out before
  it closes it, so that the message which the last one reads was lost. It goes on until there is no channel in it.
* ``Channel.conn_or_acquire`` (kombu/transport/redis.py 2085) makes a client with ``_create_client`` (2047) each time.
  All of them have the channel's pool of connections (``_pool``), which is made anew when the channel has lost them.
* ``Channel._brpop_start`` (kombu/transport/redis.py 1459) asks for the next message of a channel's queues. It is called
  (727) at each turn of the event loop in which nothing is asked yet: what does not ask is called again. Reading the
  answer begins with ``qos.can_consume`` (on_readable), and leaves it unread for as long as that says no. Other virtual
  transports ask for nothing while it does (kombu/transport/virtual/base.py 231).
"""

from __future__ import annotations

import contextlib
import functools
import socket
import time
from collections.abc import Callable
from typing import Any

import amqp
from amqp import spec
from amqp.exceptions import ConsumerCancelled, RecoverableConnectionError

__all__ = [
    "MAX_PAUSE",
    "end_connection_with",
    "pause_while",
    "raise_loss",
    "resume_polling",
    "reuse_client",
    "stop_polling",
]

#: Seconds after which a message is received, however late the worker is.
MAX_PAUSE = 0.15

# -- Losses ------------------------------------------------------------------------------------------------------------


def end_connection_with(channel: Any, on_closed: Callable[[str], None] = lambda text: None) -> None:
    """End the connection, which Celery renews, when the broker closes ``channel`` or cancels its consumer (AMQP).

    When the connection is lost, ``channel`` gives back its messages (Redis). ``on_closed`` is called with what the
    broker says when it closes the channel.
    """
    if hasattr(channel, "_brpop_read"):
        _close_completely(channel)
    if not isinstance(channel, amqp.Channel):
        return
    callbacks: dict[Any, Any] = channel._callbacks
    on_close, on_cancel = callbacks[spec.Channel.Close], callbacks[spec.Basic.Cancel]

    def closed(code: int, text: str, class_id: int, method_id: int) -> None:
        connection = channel.connection
        if channel.is_closing or connection.is_closing:
            on_close(code, text, class_id, method_id)
            return
        on_closed(text)
        _shut_down(connection)
        raise RecoverableConnectionError(text, (class_id, method_id), reply_code=code)

    def cancelled(tag: str) -> None:
        try:
            on_cancel(tag)
        except ConsumerCancelled:
            _shut_down(channel.connection)
            raise

    callbacks[spec.Channel.Close], callbacks[spec.Basic.Cancel] = closed, cancelled


def raise_loss(consumer: Any) -> None:
    """Let a loop without events notice a connection that was lost in a pending operation or in another greenlet."""
    perform = consumer.perform_pending_operations

    def perform_and_look() -> None:
        perform()
        if consumer.connection and not consumer.connection.connected:
            raise ConnectionResetError("the connection to the broker is lost")

    consumer.perform_pending_operations = perform_and_look


def _close_completely(channel: Any) -> None:
    close = channel.close

    def close_completely() -> None:
        transport = channel.connection
        # Until it is closed, a message that it reads now is put back. One whose server is gone is closed, and fails.
        if transport is not None and not channel.closed and channel not in transport.channels:
            transport.channels.append(channel)
        try:
            close()
        except channel.connection_errors:
            close()  # there is nothing to be read any more

    channel.close = close_completely


def _shut_down(connection: Any) -> None:
    """Let the next read raise that the connection is lost."""
    with contextlib.suppress(OSError, *connection.connection_errors):
        connection.sock.shutdown(socket.SHUT_RDWR)


# -- Clients -----------------------------------------------------------------------------------------------------------


def reuse_client(channel: Any) -> None:
    """Let a Redis channel use one client for its blocking calls, as long as it has the same connections."""
    create = getattr(channel, "_create_client", None)
    if create is None or not hasattr(channel, "_pool"):
        return
    client: Any = None

    def create_client(asynchronous: bool = False) -> Any:
        nonlocal client
        if asynchronous:
            return create(asynchronous=True)
        if client is None or client.connection_pool is not channel._pool:
            client = create()
        return client

    channel._create_client = create_client


# -- Asking for messages -----------------------------------------------------------------------------------------------


def pause_while(channel: Any, is_late: Callable[[], bool]) -> None:
    """Ask for no message of a Redis channel while the worker ``is_late``, for :data:`MAX_PAUSE` at most.

    For workers with an event loop: without one, a pause lasts for as long as the broker may be silent.
    """
    ask = getattr(channel, "_brpop_start", None)
    if ask is None:
        return
    since = 0.0  # when the worker was found to be late; 0.0: it is not

    @functools.wraps(ask)
    def ask_if_on_time(*args: Any, **kwargs: Any) -> Any:
        nonlocal since
        if is_late():
            now = time.monotonic()
            since = since or now
            if now - since < MAX_PAUSE:
                return None
        since = 0.0
        return ask(*args, **kwargs)

    channel._brpop_start = ask_if_on_time


def stop_polling(channel: Any) -> None:
    """Ask for no message of a channel; one that was asked for still comes. Not for AMQP."""
    owner, name = _poll_method(channel)
    setattr(owner, name, lambda *_: False)


def resume_polling(channel: Any) -> None:
    """Undo :func:`stop_polling`."""
    owner, name = _poll_method(channel)
    vars(owner).pop(name, None)


def _poll_method(channel: Any) -> tuple[Any, str]:
    """The method that asks the broker for a channel's next message, or decides it: its object, and its name."""
    return (channel, "_brpop_start") if hasattr(channel, "_brpop_start") else (channel.qos, "can_consume")
