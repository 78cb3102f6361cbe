"""Asks the broker for its queues and messages, and the workers by way of it: for commands, not for the gate.

What is relied on; line numbers are of Celery and kombu 5.7.0:

* ``Queue.queue_declare(passive=True)`` (kombu/entity.py 637) raises one of the connection's ``channel_errors`` where
  there is no such queue, on Redis as well (kombu/transport/virtual/base.py 537); on AMQP it closes the channel.
* ``Queue.get`` (entity.py 690): a message that is not acknowledged is given back when its channel is closed.
* ``app.control.mailbox(connection)`` is a copy (kombu/pidbox.py 217); ``_broadcast`` is what ``app.control.broadcast``
  calls (celery/app/control.py 787), and publishes on the app's pool, where a call may wait for ever, unless there is
  no ``producer_pool`` (pidbox.py 279).
* ``app.amqp.router.route`` (celery/app/routes.py 63) says to which queue a task is sent.
* On Redis a queue is a list for each of the channel's ``priority_steps``, named by ``_q_for_pri``; its size is the sum
  of their lengths (``Channel._size``, kombu/transport/redis.py 1656).
* On SQS a passive declaration creates the queue; ``_resolve_queue_url`` (kombu/transport/SQS/__init__.py 499) does not.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from kombu import Queue
from kombu.exceptions import ChannelError, OperationalError

__all__ = [
    "BrokerDidNotAnswer",
    "declare_passively",
    "default_queue_of",
    "fetch_messages",
    "message_count",
    "message_counts",
    "query_workers",
]

#: Seconds that a broker has to answer a query.
TIMEOUT = 2.0
#: Seconds after which no more queues are counted, where each is one question to the broker.
COUNTING_TIMEOUT = 3.0


class BrokerDidNotAnswer(Exception):
    """The broker does not answer, or cannot carry questions to workers."""


@contextmanager
def _connected(app: Any) -> Iterator[Any]:
    """A connection on which no call waits for long.

    Raises:
        BrokerDidNotAnswer: the broker did not answer.
    """
    connection = app.connection_for_read(connect_timeout=TIMEOUT)
    options = dict(connection.transport_options or {})
    if connection.transport.driver_type in ("redis", "sentinel"):
        options.update(socket_connect_timeout=TIMEOUT, socket_timeout=TIMEOUT)
    connection.transport_options = options
    with connection:
        try:
            connection.ensure_connection(max_retries=1, interval_start=0, timeout=TIMEOUT)
            yield connection
        except (
            *(OperationalError, NotImplementedError, OSError),
            *connection.connection_errors,
            *connection.channel_errors,  # the broker is full, for one
        ) as error:
            raise BrokerDidNotAnswer(str(error)) from error


def query_workers(app: Any, command: str, seconds: float, **arguments: Any) -> dict[str, Any]:
    """The replies of workers to a remote-control command within ``seconds``, by worker. Older workers reply an error.

    Raises:
        BrokerDidNotAnswer: the broker did not answer.
    """
    with _connected(app) as connection:
        if not connection.supports_exchange_type("fanout"):
            raise BrokerDidNotAnswer("it has no fanout, and so no remote control")
        mailbox = app.control.mailbox(connection)
        mailbox.producer_pool = None
        channel = connection.default_channel
        replies = mailbox._broadcast(command, arguments, reply=True, timeout=seconds, channel=channel) or []
    return {str(worker): answer for reply in replies for worker, answer in reply.items()}


def default_queue_of(app: Any, task: str) -> str | None:
    """The queue to which a task is sent unless its sender names one; None: not known."""
    own = getattr(app.tasks.get(task), "queue", None)
    try:
        queue = app.amqp.router.route({"queue": own} if own else {}, task).get("queue")
    except Exception:  # a user's router, which may want arguments
        return None
    return None if queue is None else str(getattr(queue, "name", queue))


def message_counts(app: Any, queues: Iterable[str]) -> dict[str, int]:
    """The number of messages in each queue that no worker has; 0 where the broker has no such queue.

    One round trip on Redis, at least one for each queue elsewhere. A queue whose number is not known is left out: all
    of them, if the broker does not answer; the last ones, if there are too many for :data:`COUNTING_TIMEOUT`.
    """
    counts: dict[str, int] = {}
    names = list(dict.fromkeys(queues))
    if not names:
        return counts
    with suppress(BrokerDidNotAnswer), _connected(app) as connection:
        channel = connection.channel()
        if hasattr(channel, "_q_for_pri"):
            return _lengths(channel, names)
        ends = time.monotonic() + COUNTING_TIMEOUT
        for name in itertools.takewhile(lambda _: time.monotonic() < ends, names):
            try:
                counts[name] = _count(channel, name)
            except connection.channel_errors:
                counts[name] = 0
                if connection.transport.driver_type == "amqp":
                    channel = connection.channel()
    return counts


def _lengths(channel: Any, names: Iterable[str]) -> dict[str, int]:
    """The number of messages in each queue on Redis."""
    steps = channel.priority_steps
    with channel.conn_or_acquire() as client, client.pipeline(transaction=False) as pipeline:
        for name, step in itertools.product(names, steps):
            pipeline.llen(channel._q_for_pri(name, step))
        lengths = iter(pipeline.execute(raise_on_error=False))
    each = {name: list(itertools.islice(lengths, len(steps))) for name in names}
    return {name: sum(length for length in found if isinstance(length, int)) for name, found in each.items()}


def message_count(connection: Any, queue: str) -> int:
    """The number of messages in a queue that no consumer has; 0 if the broker has no such queue."""
    channel = connection.channel()
    try:
        return _count(channel, queue)
    except connection.channel_errors:
        return 0
    finally:
        if channel.connection is not None:
            channel.close()


def _count(channel: Any, queue: str) -> int:
    return int(declare_passively(channel, queue).message_count)


def declare_passively(channel: Any, queue: str) -> Any:
    """The broker's answer about a queue. Raises one of the channel errors if it has no such queue."""
    if hasattr(channel, "_resolve_queue_url"):
        from kombu.transport import SQS

        try:
            channel._resolve_queue_url(queue)
        except (SQS.DoesNotExistQueueException, SQS.UndefinedQueueException) as error:
            raise ChannelError(str(error)) from error
    return Queue(queue).bind(channel).queue_declare(passive=True)


@contextmanager
def fetch_messages(connection: Any, queue: str, most: int) -> Iterator[Iterator[Any]]:
    """Up to ``most`` messages of a queue. At the end of the block the ones not acknowledged return to it."""
    channel = connection.channel()
    try:
        bound = Queue(queue).bind(channel)
        yield itertools.islice(iter(bound.get, None), most)
    finally:
        channel.close()
