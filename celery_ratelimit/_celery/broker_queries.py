"""What a broker says of its queues, and what workers say by way of it, for people who look at them.

What is relied on; line numbers are of Celery and kombu 5.7.0:

* ``Queue.queue_declare(passive=True)`` (kombu/entity.py 637) raises one of the connection's ``channel_errors`` where
  there is no such queue; on AMQP it closes the channel.
* ``app.control.mailbox(connection)`` is a copy (kombu/pidbox.py 217); ``_broadcast`` is what ``app.control.broadcast``
  calls (celery/app/control.py 787), and publishes on the app's pool, where a call may wait for ever, unless there is
  no ``producer_pool`` (pidbox.py 279).
* ``app.amqp.router.route`` (celery/app/routes.py 63) says to which queue a task is sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from kombu import Queue
from kombu.exceptions import OperationalError

__all__ = ["NoAnswer", "asked_workers", "messages_of", "queue_of"]

#: Seconds that a broker has to answer a query.
PATIENCE = 2.0


class NoAnswer(Exception):
    """The broker does not answer, or has nothing by which workers could be asked."""


@contextmanager
def _looking(app: Any) -> Iterator[Any]:
    """A connection on which no call waits for long.

    Raises:
        NoAnswer: the broker did not answer.
    """
    connection = app.connection_for_read(connect_timeout=PATIENCE)
    options = dict(connection.transport_options or {})
    if connection.transport.driver_type in ("redis", "sentinel"):
        options.update(socket_connect_timeout=PATIENCE, socket_timeout=PATIENCE)
    connection.transport_options = options
    with connection:
        try:
            connection.ensure_connection(max_retries=1, interval_start=0, timeout=PATIENCE)
            yield connection
        except (OperationalError, NotImplementedError, OSError, *connection.connection_errors) as error:
            raise NoAnswer(str(error)) from error
        except connection.channel_errors as error:  # it is full, for one
            raise NoAnswer(str(error)) from error


def asked_workers(app: Any, what: str, seconds: float, **arguments: Any) -> dict[str, Any]:
    """What the workers say that answer within so many seconds, by their names; what older ones do not know is an error.

    Raises:
        NoAnswer: the broker did not answer.
    """
    with _looking(app) as connection:
        mailbox = app.control.mailbox(connection)
        mailbox.producer_pool = None
        channel = connection.default_channel
        replies = mailbox._broadcast(what, arguments, reply=True, timeout=seconds, channel=channel) or []
    return {str(worker): told for reply in replies for worker, told in reply.items()}


def messages_of(app: Any, queues: Iterable[str]) -> dict[str, int]:
    """How many messages each of these queues holds that no worker has; one that the broker does not have holds none.

    Queues of which it cannot say so are left out: all of them, where it does not answer.
    """
    found: dict[str, int] = {}
    names = list(dict.fromkeys(queues))
    if not names:
        return found
    with suppress(NoAnswer), _looking(app) as connection:
        channel = connection.channel()
        for name in names:
            try:
                found[name] = int(Queue(name).bind(channel).queue_declare(passive=True).message_count)
            except connection.channel_errors:
                found[name] = 0
                if connection.transport.driver_type == "amqp":
                    channel = connection.channel()
    return found


def queue_of(app: Any, task: str) -> str | None:
    """The queue to which a task is sent unless its sender says another; None: that is not known."""
    try:
        queue = app.amqp.router.route({}, task).get("queue")
    except Exception:  # a user's router, which may want arguments
        return None
    return None if queue is None else str(getattr(queue, "name", queue))
