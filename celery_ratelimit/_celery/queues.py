"""What a broker says of its queues, for people who look at them.

What is relied on; line numbers are those of Celery and kombu 5.7.0:

* ``Queue.queue_declare(passive=True)`` (kombu/entity.py 637) raises one of the connection's ``channel_errors`` where
  there is no such queue; on AMQP it closes the channel.
* ``app.amqp.router.route`` (celery/app/routes.py 63) says to which queue a task is sent.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kombu import Queue
from kombu.exceptions import OperationalError

__all__ = ["messages_of", "queue_of"]

#: Seconds that a broker has to answer who only looks.
PATIENCE = 2.0


def messages_of(app: Any, queues: Iterable[str]) -> dict[str, int]:
    """How many messages each of these queues holds that no worker has; one that the broker does not have holds none.

    Those of which it cannot say so are left out: all of them, where it does not answer.
    """
    found: dict[str, int] = {}
    names = list(dict.fromkeys(queues))
    if not names:
        return found
    connection = app.connection_for_read(connect_timeout=PATIENCE)
    options = dict(connection.transport_options or {})
    if connection.transport.driver_type in ("redis", "sentinel"):
        options.update(socket_connect_timeout=PATIENCE, socket_timeout=PATIENCE)
    connection.transport_options = options
    with connection:
        try:
            connection.ensure_connection(max_retries=1, interval_start=0, timeout=PATIENCE)
            channel = connection.channel()
            for name in names:
                try:
                    found[name] = int(Queue(name).bind(channel).queue_declare(passive=True).message_count)
                except connection.channel_errors:
                    found[name] = 0
                    if connection.transport.driver_type == "amqp":
                        channel = connection.channel()
        except (OperationalError, NotImplementedError, *connection.connection_errors):
            pass
    return found


def queue_of(app: Any, task: str) -> str | None:
    """The queue to which a task is sent unless its sender says another; None: that is not known."""
    try:
        queue = app.amqp.router.route({}, task).get("queue")
    except Exception:  # a user's router, which may want arguments
        return None
    return None if queue is None else str(getattr(queue, "name", queue))
