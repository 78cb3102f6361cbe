"""The connection to the broker: what kind it is, and which thread reads from it.

What is relied on; line numbers are of Celery and kombu 5.7.0:

* ``Consumer.hub`` is None where the worker has no event loop (celery/worker/worker.py 307): on pools of greenlets, and
  on Windows or with transports that are not asynchronous.
* ``Consumer.connection`` is None while Celery connects anew (celery/worker/consumer/consumer.py 485);
  ``connection_errors`` are the errors after which it does, on Redis a KeyError, too (kombu/transport/redis.py 258).
* Without an event loop (celery/worker/loops.py, synloop) a worker asks a broker that has to be asked, and whose
  messages may not come in now, no sooner than after a while (kombu/transport/virtual/base.py 999).
* RabbitMQ (since 3.8.17) says which ``consumer_timeout`` it has closed a channel for: "Timeout value used: 1800000 ms".
* A ``worker_eta_task_limit`` is the most that the prefetch becomes (celery/worker/consumer/tasks.py 54).
* On SQS the queue's own timeout counts: kombu receives without one (kombu/transport/SQS/__init__.py 943), and gives
  ``visibility_timeout`` only to queues that it creates (537).
"""

from __future__ import annotations

import functools
import hashlib
import logging
import math
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from kombu.exceptions import ChannelError

from .broker_queries import declare_passively

__all__ = [
    "HOLD_SHARE",
    "Broker",
    "broker_fingerprint",
    "broker_lost",
    "broker_problem",
    "consumer_timeout_of",
    "is_on_sqs",
    "longest_hold",
    "visibility_timeouts_of",
]

logger: logging.Logger = logging.getLogger("celery_ratelimit")

#: Seconds after which a broker delivers an unacknowledged message again, by transport, unless configured.
_VISIBILITY_TIMEOUTS = {"redis": 3600.0, "sentinel": 3600.0, "sqs": 1800.0, "amqp": 1800.0}
#: The share of the visibility timeout that a message may be on a countdown, and may be held after it.
HOLD_SHARE = 0.4


class Broker:
    """The broker of one worker.

    Attributes:
        no_event_loop: whether another thread or greenlet reads from the connection than the one that runs timers.
        return_queue_for: the return queue's name, by the name of its queue.
    """

    return_queue_for: Callable[[str], str] = staticmethod(str)

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self._timeouts: dict[str, float] = {}  # by queue, as far as they are declared
        self._consumer_timeout = math.inf  # what a channel was closed for
        self.no_event_loop: bool = consumer.hub is None

    @property
    def connection(self) -> Any:
        """The worker's own; None while Celery connects anew."""
        return self._consumer.connection

    @property
    def on_amqp(self) -> bool:
        connection = self.connection
        return connection is not None and bool(connection.transport.driver_type == "amqp")

    @property
    def connection_errors(self) -> tuple[type[BaseException], ...]:
        """The errors to raise for Celery, which then connects anew: AMQP may close the connection during any call.

        Other transports notice a loss when they read.
        """
        return tuple(self._consumer.connection_errors) if self.on_amqp and not self.no_event_loop else ()

    @functools.cached_property
    def _redelivery(self) -> float:
        return min(visibility_timeouts_of(self._consumer.app, self.return_queue_for))

    def max_hold(self, queue: str = "") -> float:
        """Seconds that a message of a queue may be on a countdown, and may be held after it, within one delivery."""
        if queue not in self._timeouts:
            self._timeouts[queue] = min(self._redelivery, consumer_timeout_of(self._consumer.app, queue))
        return min(self._timeouts[queue], self._consumer_timeout) * HOLD_SHARE

    def on_channel_closed(self, text: str) -> None:
        """RabbitMQ has closed a channel. If a message was held for too long, learn its ``consumer_timeout``."""
        found = re.search(r"acknowledgement .* timed out.*: (\d+) ms", text)
        timeout = int(found[1]) / 1e3 if found else math.inf
        if timeout < min(self._consumer_timeout, max(self._timeouts.values(), default=0.0)):
            self._consumer_timeout = timeout
            logger.warning(
                "RabbitMQ has closed a channel as its consumer_timeout is %g s: from now on this worker holds no "
                "message for longer than %g s, and then sends it back. Raise consumer_timeout to half an hour, or, so "
                "that workers know it when they start, name it: x-consumer-timeout in the queue's arguments, or "
                "visibility_timeout (in seconds) in broker_transport_options",
                *(timeout, timeout * HOLD_SHARE),
            )

    @property
    def limits_eta_tasks(self) -> bool:
        """Whether a worker receives nothing more while a number of messages wait in it for their countdown."""
        return bool(self._consumer.app.conf.get("worker_eta_task_limit", None))

    @property
    def poll_delay(self) -> float:
        """Seconds until the broker is asked again once a full prefetch has room."""
        return 4.0 if self.no_event_loop and not self.on_amqp else 0.0


def broker_lost(error: BaseException) -> str:
    """The error for a broker that does not answer, and what to check."""
    why = str(error).rstrip(".")
    return f"the broker does not answer: {why}. Check that it runs, that this machine reaches it, and broker_url"


def broker_problem(app: Any, error: BaseException) -> str:
    """What is wrong with an app's broker, if an error, wherever it was raised, is about that; else ``""``."""
    with app.connection_for_write() as connection:
        lost, refused = tuple(connection.connection_errors), tuple(connection.channel_errors)
    causes = [error]
    while causes[-1].__cause__ is not None:  # kombu has an error of its own for several messages
        causes.append(causes[-1].__cause__)
    for each in causes:
        # Among its connection errors kombu has the KeyErrors of its reading from Redis; a broken pipe is a reader's.
        if isinstance(each, lost) and not isinstance(each, (KeyError, BrokenPipeError)):
            return broker_lost(each)
        if isinstance(each, refused):
            return f"the broker refuses what it was told: {each}"
    return ""


def visibility_timeouts_of(app: Any, return_queue_for: Callable[[str], str] = str) -> list[float]:
    """Seconds after which an app's broker delivers an unacknowledged message again.

    On SQS for each queue that this process consumes, and for their return queues.
    """
    given = float((app.conf.broker_transport_options or {}).get("visibility_timeout") or 0.0)
    with app.connection_for_read() as connection:
        transport, queues = connection.transport.driver_type, app.amqp.queues.consume_from
        names = dict.fromkeys([*queues, *map(return_queue_for, queues)]) if transport == "sqs" else ()
        found = list(_sqs_timeouts(connection, names, given))
    return found or [given or _VISIBILITY_TIMEOUTS.get(transport, 1800.0)]


def _sqs_timeouts(connection: Any, queues: Iterable[str], given: float) -> Iterator[float]:
    """The visibility timeouts of queues. A missing one will be created with the settings' (``given``), or kombu's."""
    try:
        for name in queues:
            channel = connection.default_channel
            try:
                declare_passively(channel, name)
            except ChannelError:
                yield given or _VISIBILITY_TIMEOUTS["sqs"]
            else:
                url, client = channel._resolve_queue_url(name), channel.sqs(channel.canonical_queue_name(name))
                found = client.get_queue_attributes(QueueUrl=url, AttributeNames=["VisibilityTimeout"])
                yield float(found["Attributes"]["VisibilityTimeout"])
    except Exception as error:  # a right is missing, or SQS does not answer
        lowest = given or 30.0  # what SQS gives a queue that is created without
        logger.warning(
            "The visibility timeouts of SQS queues cannot be read (%s): %g s are assumed. Grant "
            "sqs:GetQueueAttributes, or set visibility_timeout in broker_transport_options",
            *(error, lowest),
        )
        yield from (lowest, given or _VISIBILITY_TIMEOUTS["sqs"])


def longest_hold(app: Any) -> float:
    """Seconds that a message may be on a countdown in a worker. Of a longer one the broker delivers it again."""
    queues = app.amqp.queues.consume_from
    return HOLD_SHARE * min(*visibility_timeouts_of(app), *[consumer_timeout_of(app, queue) for queue in queues])


def is_on_sqs(app: Any) -> bool:
    """Whether an app's broker is Amazon SQS, by the name of its transport, or by its (first) address."""
    transport, url = app.conf.broker_transport, app.conf.broker_read_url
    first = url[0] if url and isinstance(url, (list, tuple)) else url
    return "sqs" in str(transport or first).partition("://")[0].lower()


def consumer_timeout_of(app: Any, queue: str) -> float:
    """The ``x-consumer-timeout`` with which a queue or its consumers are declared (RabbitMQ), in seconds; else inf."""
    declared: Any = app.amqp.queues.get(queue)
    arguments = {**(declared.queue_arguments or {}), **(declared.consumer_arguments or {})} if declared else {}
    return (arguments.get("x-consumer-timeout") or math.inf) / 1e3  # in milliseconds; 0: none


def broker_fingerprint(app: Any) -> str:
    """A short hash of an app's broker, the same in all its workers."""
    with app.connection_for_write() as connection:
        urls = [re.sub("//[^@/]*@", "//", url) for url in connection.alt or [connection.as_uri()]]
    options = app.conf.broker_transport_options or {}
    parts = [*sorted(urls), *(str(options.get(name, "")) for name in ("global_keyprefix", "master_name"))]
    return hashlib.sha1("\n".join(parts).encode(), usedforsecurity=False).hexdigest()[:10]
