"""Every touch of a Celery or kombu internal, and nothing else. Line numbers are those of Celery and kombu 5.7.0.

``tests/integration/test_internals.py`` fails loudly when one of them moves.

What is relied on:

* ``Consumer.on_task_request`` (celery/worker/consumer/consumer.py 175): every message that passed revocation,
  ETA and Celery's own ``rate_limit`` goes through it. It is read by the task strategies when they are built
  (celery/worker/strategy.py 123), which is after the consumer's bootsteps are made, and at call time by
  ``apply_eta_task`` and ``_limit_move_to_pool``.
* ``state.reserved_requests`` (celery/worker/state.py): every request that was received and has not ended.
* ``pool.apply_async(..., callback, error_callback)`` (celery/worker/request.py, ``create_request_cls``): read when
  the strategies are built; one of the two callbacks ends every task.
* ``Hub.fire_timers(max_timers=10)`` (kombu/asynchronous/hub.py): after ten timers in one turn the hub sleeps
  for up to a second, whatever is due next; more than ten tasks a turn would be late.
* ``Consumer.timer.queue`` and its entries' ``fun``, ``args`` and ``canceled`` (kombu/asynchronous/timer.py,
  celery/utils/timer2.py): requests that wait here for the end of their countdown, for ``Consumer.apply_eta_task``.
* ``kombu.Consumer._basic_consume`` (kombu/messaging.py 841): the one place that knows which queue a message comes
  from on every transport.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta, timezone
from typing import Any

from billiard.einfo import ExceptionInfo
from celery import signals
from celery.concurrency import prefork
from celery.utils.saferepr import saferepr
from celery.worker import state
from kombu import Exchange, Producer, Queue

__all__ = ["Worker"]

#: The header that a message carries while it is sent back: what to restore when its task starts.
RETURN_HEADER = "ratelimit"

#: The entry of ``request.delivery_info`` that says that the task's permit was taken: ``worker``, by which; ``queue``,
#: whose limits it is of; ``id`` and ``granted_at``, under which the store knows it (0: the store was not asked).
PERMIT = "ratelimit_permit"

#: Properties that the transport writes anew at every publish.
_TRANSPORT_PROPERTIES = (
    *("delivery_info", "delivery_tag", "body_encoding", "expiration", "priority", "delivery_mode"),
    *("content_type", "content_encoding", "application_headers", "headers"),
)

#: Seconds after which a broker hands out an unacknowledged message again, by transport, unless configured.
_REDELIVERY = {"redis": 3600.0, "sentinel": 3600.0, "sqs": 1800.0, "amqp": 1800.0}


class Worker:
    """One worker's consumer, as the gate sees it: what it holds, starts, sends back and fails.

    Args:
        consumer: a ``celery.worker.consumer.Consumer`` that is being made (its strategies are not built yet).
    """

    def __init__(self, consumer: Any) -> None:
        self.app = consumer.app
        self.hostname: str = consumer.hostname
        self._consumer = consumer
        self._start = consumer.on_task_request
        self._task_seconds = float("inf")

    # -- Taking the consumer's place -------------------------------------------------------------------------------

    def intercept(self, on_request: Callable[[Any], None], on_end: Callable[[str], None]) -> None:
        """From now on every request goes to ``on_request``, and ``on_end`` gets the id of each task that has ended."""
        self._consumer.on_task_request = on_request
        self._watch_pool(on_end)
        hub = self._consumer.hub
        if hub is not None:
            hub.fire_timers = functools.partial(hub.fire_timers, max_timers=1000)
        self.app.amqp.Consumer = _stamping(self.app.amqp.Consumer)

    def _watch_pool(self, on_end: Callable[[str], None]) -> None:
        pool, consumer = self._consumer.pool, self._consumer
        apply_async = pool.apply_async
        main_thread = threading.get_ident()

        def ended(began: float, args: Any) -> None:
            took = time.monotonic() - began
            known = self._task_seconds < float("inf")
            self._task_seconds = self._task_seconds * 0.9 + took * 0.1 if known else took
            id = args[1] if len(args) > 1 else ""  # (task name, id, request, body, …): celery/worker/request.py 1011
            if threading.get_ident() == main_thread:
                on_end(id)
            else:
                consumer.call_soon(functools.partial(on_end, id))

        def then_ended(callback: Callable[..., Any] | None, began: float, of: Any) -> Callable[..., Any]:
            def run(*args: Any, **kwargs: Any) -> Any:
                try:
                    return callback(*args, **kwargs) if callback is not None else None
                finally:
                    ended(began, of)

            return run

        @functools.wraps(apply_async)
        def watched(
            target: Any,
            args: Any = (),
            kwargs: Any = None,
            callback: Any = None,
            error_callback: Any = None,
            **options: Any,
        ) -> Any:
            began = time.monotonic()
            return apply_async(
                target,
                args,
                kwargs,
                callback=then_ended(callback, began, args),
                error_callback=then_ended(error_callback, began, args),
                **options,
            )

        pool.apply_async = watched

    def consume_return_queues(self, name_for: Callable[[str], str]) -> None:
        """Consume, beside each queue of this worker, the queue that its throttled tasks are sent back to."""
        queues = self.app.amqp.queues
        for name, queue in list(queues.consume_from.items()):
            back = name_for(name)
            # A queue that is itself a return queue (a worker started for it alone) has none of its own.
            if back not in queues.consume_from and not any(name_for(other) == name for other in queues):
                queues.select_add(
                    Queue(
                        back,
                        Exchange(back, "direct"),
                        back,
                        durable=queue.durable,
                        queue_arguments=queue.queue_arguments,
                        max_priority=queue.max_priority,
                    )
                )

    @property
    def forks(self) -> bool:
        """Whether tasks run in other processes than this."""
        return isinstance(self._consumer.pool, prefork.TaskPool)

    # -- What the worker is doing ----------------------------------------------------------------------------------

    def free_processes(self, held: int) -> int:
        """Pool processes that would start a task at once, when ``held`` of the received requests are in the gate."""
        processes: int = self._consumer.pool.num_processes
        return processes - (len(state.reserved_requests) - held)

    def starts_within(self, seconds: float) -> int:
        """Tasks that processes which are busy now can be expected to start in that time; 0 where tasks take longer."""
        return (
            int(self._consumer.pool.num_processes * seconds / self._task_seconds) if self._task_seconds < seconds else 0
        )

    def live_workers(self) -> int:
        """Workers of the fleet that gossip knows, this one included; at least 1."""
        if not self.can_gossip:
            return 1
        others = {worker.hostname for worker in self._consumer.gossip.state.alive_workers()} - {self.hostname}
        return 1 + len(others)

    @property
    def can_gossip(self) -> bool:
        gossip = getattr(self._consumer, "gossip", None)
        return bool(gossip is not None and gossip.enabled)

    @property
    def redelivery(self) -> float:
        """Seconds after which the broker takes an unacknowledged message for lost."""
        connection = self._consumer.connection or self.app.connection_for_read()
        options = self.app.conf.broker_transport_options or {}
        default = _REDELIVERY.get(connection.transport.driver_type, 1800.0)
        return float(options.get("visibility_timeout") or default)

    def widen_prefetch(self) -> None:
        """Let one more message come in, as Celery does for each task that waits for its ETA."""
        self._consumer.qos.increment_eventually()

    def narrow_prefetch(self) -> None:
        """Undo :meth:`widen_prefetch`."""
        self._consumer.qos.decrement_eventually()

    def call_after(self, seconds: float, callback: Callable[[], None]) -> Callable[[], None]:
        """Call ``callback`` on the worker's timer; returns what cancels it."""
        entry = self._consumer.timer.call_after(seconds, callback)
        return functools.partial(self._consumer.timer.cancel, entry)

    def recall(self, wanted: Callable[[Any], bool]) -> None:
        """Let those requests come now that were sent back and wait here for the end of their countdown."""
        # strategy.py 212: the timer's entries for them call Consumer.apply_eta_task (consumer.py 734).
        for waiting in sorted(self._consumer.timer.queue):
            entry = waiting[2]
            if entry.canceled or getattr(entry.fun, "__name__", "") != "apply_eta_task":
                continue
            if self.came_back(entry.args[0]) and wanted(entry.args[0]):
                entry.cancel()
                entry.fun(*entry.args)

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` in the worker's event loop, from any thread."""
        self._consumer.call_soon(callback)

    # -- What can be done with a request ---------------------------------------------------------------------------

    @staticmethod
    def queue_of(request: Any) -> str:
        """The queue that the task was sent to, also when it comes from that queue's return queue."""
        marker = request.message.headers.get(RETURN_HEADER)
        if isinstance(marker, dict):
            return str(marker.get("queue"))
        return getattr(request.message, "ratelimit_queue", None) or request.delivery_info.get("routing_key") or ""

    @staticmethod
    def came_back(request: Any) -> bool:
        return isinstance(request.message.headers.get(RETURN_HEADER), dict)

    @staticmethod
    def restore(request: Any) -> None:
        """Undo in a request what sending it back has changed, so that its task finds it as it was sent."""
        fields = request.request_dict
        marker = fields.pop(RETURN_HEADER, None)
        if isinstance(marker, dict):
            fields["eta"] = marker.get("eta")
            request.delivery_info["exchange"] = marker.get("exchange")
            request.delivery_info["routing_key"] = marker.get("routing_key")

    def start(self, request: Any, permit: Mapping[str, Any] | None = None) -> None:
        """Hand a request to the pool, as if the gate were not there; with its permit, if it has one."""
        if permit is not None:
            request.delivery_info[PERMIT] = {"worker": self.hostname, **permit}
        self._start(request)

    def send_back(self, request: Any, queue: str, return_queue: str, delay: float) -> None:
        """Publish the message again as it is, to come back after ``delay`` seconds, and acknowledge this copy.

        In that order, and on the channel that it came by: a crash between the two leaves a duplicate with the same
        id, never a gap. Raises what the publish raises; the message then is unacknowledged still.
        """
        message = request.message
        headers = dict(message.headers)
        marker = headers.get(RETURN_HEADER)
        if not isinstance(marker, dict):
            headers[RETURN_HEADER] = {
                "queue": queue,
                "eta": headers.get("eta"),
                "exchange": request.delivery_info.get("exchange"),
                "routing_key": request.delivery_info.get("routing_key"),
            }
        headers["eta"] = (datetime.now(timezone.utc) + timedelta(seconds=delay)).isoformat() if delay > 0 else None
        properties = dict(message.properties or {})
        options = {name: properties.pop(name, None) for name in _TRANSPORT_PROPERTIES}
        body = message.body
        Producer(message.channel, auto_declare=False).publish(
            body if isinstance(body, str) else bytes(body),
            exchange="",
            routing_key=return_queue,
            content_type=message.content_type,
            content_encoding=message.content_encoding,
            headers=headers,
            compression=headers.pop("compression", None),  # the body was decompressed when it arrived
            priority=options["priority"],
            delivery_mode=options["delivery_mode"],
            expiration=_seconds_left(request) if options["expiration"] is not None else None,
            **properties,
        )
        request.acknowledge()
        state.task_ready(request)

    def announce(self, request: Any, retry_after: float, limit: str | None) -> None:
        """The event for monitors. ``task-throttled`` shows as state THROTTLED there."""
        request.send_event("task-throttled", retry_after=retry_after, limit=limit)

    def fail(self, request: Any, error: BaseException) -> None:
        """End a task with ``error`` as its own, without running it: as Celery does for a hard time limit."""
        self.restore(request)
        try:
            raise error
        except BaseException:
            info = ExceptionInfo()
        task, context = request.task, request._context
        try:
            task.backend.mark_as_failure(
                request.id,
                error,
                traceback=info.traceback,
                request=context,
                store_result=request.store_errors,
            )
            task.on_failure(error, request.id, request.args, request.kwargs, info)
            signals.task_failure.send(
                sender=task,
                task_id=request.id,
                exception=error,
                args=request.args,
                kwargs=request.kwargs,
                traceback=error.__traceback__,
                einfo=info,
            )
            request.send_event("task-failed", exception=saferepr(error), traceback=info.traceback)
        finally:
            state.task_ready(request)
            request.acknowledge()

    def drop(self, request: Any, reason: str) -> None:
        """End a task without running it: state REVOKED with a reason, so that nobody waits for its result."""
        self.restore(request)
        request._announce_revoked(reason, False, None, False)


def _seconds_left(request: Any) -> float | None:
    """A message's own time to live is counted from its publishing: what is left of it now."""
    if request.expires is None:
        return None
    now = datetime.now(timezone.utc if request.expires.tzinfo else None)
    left: float = (request.expires - now).total_seconds()
    return max(0.001, left)


def _stamping(base: type) -> type:
    """A kombu consumer that notes on each message the queue that it was taken from.

    A routing key is not that: a topic exchange has many queues for one. AMQP gives a consumer tag, Redis nothing.
    """
    if getattr(base, "stamps_queue", False):
        return base

    class Consumer(base):
        stamps_queue = True

        def _basic_consume(self, queue: Any, *args: Any, **kwargs: Any) -> Any:
            consume = queue.consume

            def consume_stamped(tag: str, callback: Callable[[Any], Any], **options: Any) -> Any:
                def stamped(message: Any) -> Any:
                    message.ratelimit_queue = queue.name
                    return callback(message)

                return consume(tag, stamped, **options)

            queue.consume = consume_stamped
            try:
                return super()._basic_consume(queue, *args, **kwargs)
            finally:
                del queue.consume

    return Consumer
