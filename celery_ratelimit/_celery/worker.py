"""A worker's consumer, as the gate sees it. What it relies on; line numbers are those of Celery and kombu 5.7.0.

``tests/integration/test_internals.py`` fails loudly when one of them moves.

What is relied on:

* ``Consumer.on_task_request`` (celery/worker/consumer/consumer.py 175): every message that passed revocation,
  ETA and Celery's own ``rate_limit`` goes through it. It is read by the task strategies when they are built
  (celery/worker/strategy.py 123), which is after the consumer's bootsteps are made, and at call time by
  ``apply_eta_task`` and ``_limit_move_to_pool``.
* ``Request._eta_timer_entry`` (celery/worker/request.py 85): of use while the request is scheduled, and no longer.
* ``Hub.fire_timers(max_timers=10)`` (kombu/asynchronous/hub.py): after ten timers in one turn the hub sleeps
  for up to a second, whatever is due next; more than ten tasks a turn would be late.
* ``Consumer.timer.queue`` and its entries' ``fun``, ``args`` and ``canceled`` (kombu/asynchronous/timer.py,
  celery/utils/timer2.py): requests that wait here for the end of their countdown, for ``Consumer.apply_eta_task``.
* ``Consumer.hub`` is None where the worker has no event loop (celery/worker/worker.py 307): on pools of greenlets, and
  on Windows or with transports that are not asynchronous. In the latter two timers have a thread
  (celery/utils/timer2.py), which sleeps until what was next when it lay down, or for ``schedule.max_interval``.
* ``pool.is_green`` (celery/concurrency/base.py 61), and the ``eta`` and ``entry`` of the greenlets in the queue of such
  a pool's timer (gevent.py 60, eventlet.py 53).
* ``kombu.transport.redis.QoS`` (kombu/transport/redis.py 467): what it does to acknowledge a message.
* ``AMQP.Queues`` makes queues as the app's settings say, ``Queues.new_missing`` one that nobody has named
  (celery/app/amqp.py 235 and 317).
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import logging
import operator
import re
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from typing import Any

from celery.concurrency import prefork
from celery.worker import state
from kombu.transport import virtual

from . import endings
from .identity import RedisQoS, stored_id
from .outbox import NoSuchQueue, Outbox
from .parcel import Parcel, marker_in, parcel_of, without_marker
from .pool import Pool
from .prefetch import Prefetch
from .returns import MOST_RETURNED, Returns, consumers, noted

__all__ = ["MOST_RETURNED", "PERMIT", "Worker", "fleet_of", "redelivery_of"]

logger = logging.getLogger("celery_ratelimit")

#: The entry of ``request.delivery_info`` that says that the task's permit was taken: ``worker``, by which; ``queue``,
#: whose limits it is of; ``id`` and ``granted_at``, under which the store knows it (0: the store was not asked).
PERMIT = "ratelimit_permit"

#: Messages that are acknowledged at once, and seconds after which they are, be they fewer. Until then a worker that
#: is killed leaves them at the broker, too.
MOST_LET_GO, LET_GO = 20, 0.02

#: Seconds that a timer may be late where timers have a thread.
LATEST = 0.01

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
        self.pool = Pool(consumer.pool)
        self._newest_revoked: str | None = next(reversed(state.revoked._data), None)
        self._prefetch = Prefetch(consumer)
        self._returns = Returns(consumer, self._prefetch)
        self._let_go: list[Any] = []
        self._acknowledge_later: Callable[[], None] | None = None
        #: Whether timers go off in another thread or greenlet than the one that reads from the broker: in which.
        self._apart = consumer.hub is None
        self._green = bool(consumer.pool.is_green)
        self._threaded = self._apart and not self._green
        self._outbox = Outbox(
            self.app,
            lambda: self._consumer.connection,
            lambda: self._on_amqp,
            self._apart,
            self._returns.declaration,
        )
        #: Whoever comes into the gate holds it where timers have a thread; greenlets let one another in.
        self.turn: AbstractContextManager[Any] = threading.RLock() if self._threaded else nullcontext()

    # -- Taking the consumer's place -------------------------------------------------------------------------------

    def intercept(
        self,
        on_request: Callable[[Any], None],
        on_end: Callable[[Any], None],
        on_message: Callable[[Any], None],
        on_error: Callable[[Any, Exception], None],
    ) -> None:
        """From now on every request goes to ``on_request``, and ``on_end`` gets each one whose task has ended.

        ``on_message`` sees each message when it comes in, before its countdown. ``on_error`` gets a request and what
        nobody has foreseen at it; the message of one that it cannot have ends here.
        """

        def come(request: Any) -> None:
            request.message.ratelimit_came = True
            request.name = str(request.name)  # a shadow may be a list, which Celery cannot count (state.py 107)
            if getattr(request, "_eta_timer_entry", None) is not None:
                request._eta_timer_entry = None  # strategy.py 212: the two would live until the next full collection
            try:
                on_request(request)
            except Exception as error:
                if isinstance(error, self.connection_errors):
                    raise
                on_error(request, error)

        controller = self._consumer.controller
        endings.contain_handler(self._consumer, self._is_farewell)
        at_once = self._start == controller._process_task  # else it asks the controller when it comes to it
        endings.contain_pool(controller, on_error, self._is_farewell)
        if at_once:
            self._start = controller._process_task
        self._consumer.on_task_request = self._in_turn(come)
        self.pool.forget_nothing(self._consumer)
        self.pool.watch(self._tells_the_loop(self._in_turn(self._contained(on_end))))
        hub = self._consumer.hub
        if hub is not None:
            hub.fire_timers = functools.partial(hub.fire_timers, max_timers=1000)
        elif self._threaded:
            timer = self._consumer.timer
            getattr(timer, "schedule", timer).max_interval = LATEST
        self._prefetch.pass_celerys_limit(self.came_back, self.came_beside)
        seen = self._in_turn(self._contained(self._origin_checked(on_message)))
        self._beside, self.app.amqp.Consumer = consumers(self.app.amqp.Consumer, seen, self._returns)

    def _in_turn(self, function: Callable[..., None]) -> Callable[..., None]:
        """The same, by one thread at a time."""
        if not self._threaded:
            return function

        @functools.wraps(function)
        def in_turn(*args: Any) -> None:
            with self.turn:
                function(*args)

        return in_turn

    def _contained(self, function: Callable[..., None]) -> Callable[..., None]:
        """The same, where nobody could do anything about what is raised but Celery, about a lost connection."""

        @functools.wraps(function)
        def contained(*args: Any) -> None:
            try:
                function(*args)
            except Exception as error:
                if isinstance(error, self.connection_errors):
                    raise
                logger.error("%r in %s: the worker goes on", error, function, exc_info=True)

        return contained

    def _origin_checked(self, on_message: Callable[[Any], None]) -> Callable[[Any], None]:
        """The same, and before it: what says to come from a queue that nobody here knows comes from where it came.

        Else it would be sent back to where nobody consumes, and wait for ever.
        """

        def checked(message: Any) -> None:
            marker = marker_in(message)
            came_by = noted(message, "ratelimit_queue")
            origin = self._returns.origin_of(came_by) if marker else came_by
            if marker and origin and marker["queue"] not in {came_by, origin, *self.app.amqp.queues}:
                logger.warning(
                    "A message in queue %r says to be from queue %r, which is not known here: taken as from %r",
                    *(came_by, marker["queue"], origin),
                )
                marker["queue"] = origin
            on_message(message)

        return checked

    def _is_farewell(self, error: BaseException) -> bool:
        # Among its connection errors kombu has the KeyErrors of its own reading from Redis (transport/redis.py 258).
        return isinstance(error, tuple(self._consumer.connection_errors)) and not isinstance(error, KeyError)

    def _tells_the_loop(self, on_end: Callable[[Any], None]) -> Callable[[Any], None]:
        """The same, called where the gate is at home, from any thread or greenlet."""
        at_home = threading.get_ident()

        def tell(request: Any) -> None:
            if threading.get_ident() == at_home:
                on_end(request)
            else:
                self.call_soon(functools.partial(on_end, request))

        return tell

    def consume_return_queues(self, name_for: Callable[[str], str]) -> None:
        """Consume, beside each queue of this worker, the queue by which its throttled tasks come back.

        Args:
            name_for: what it is called.
        """
        self._returns.set_up(name_for, self._beside, self._outbox)

    def return_queue_for(self, queue: str) -> str:
        """The queue by which throttled tasks of ``queue`` come back; that may be ``queue`` itself."""
        return self._returns.name_for(queue)

    @property
    def forks(self) -> bool:
        """Whether tasks run in other processes than this."""
        return isinstance(self._consumer.pool, prefork.TaskPool)

    # -- What the worker is doing ----------------------------------------------------------------------------------

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

    @functools.cached_property
    def redelivery(self) -> float:
        """Seconds after which the broker takes an unacknowledged message for lost."""
        return redelivery_of(self.app)

    def widen_prefetch(self) -> None:
        """Let one more message come in, as Celery does for each task that waits for its ETA."""
        self._prefetch.widen(1)

    def narrow_prefetch(self) -> None:
        """Undo :meth:`widen_prefetch`."""
        self._prefetch.widen(-1)

    def stop_consuming(self, queue: str) -> None:
        """Leave the messages of a queue in the broker from now on.

        To be called while a message of it is handled: then nothing is being asked of the broker, and kombu delays it to
        the end of that (transport/redis.py 1325), so that none comes in that nobody would take; or when it
        :attr:`is_full`.
        """
        if self._apart and self._on_amqp:  # a task whose own countdown has ended comes by another thread
            self._consumer.call_soon(self._consumer.task_consumer.leave_alone, queue)
        else:
            self._consumer.task_consumer.leave_alone(queue)

    def may_stop_consuming(self, queue: str) -> bool:
        """Not a queue that would be deleted then, with what is in it."""
        found = self._returns.queues.get(queue)
        return found is None or not found.auto_delete

    @property
    def is_full(self) -> bool:
        """Whether nothing is asked of the broker, as all has come in that may (redis.py 741); AMQP's never is asked."""
        qos = getattr(self._consumer.task_consumer.channel, "qos", None)
        return not isinstance(qos, virtual.QoS) or not qos.can_consume()

    def go_on_consuming(self, queue: str) -> None:
        """Undo :meth:`stop_consuming`, unless somebody has cancelled the queue meanwhile."""
        if self._apart:  # the thread that reads from the broker has to do it
            self._consumer.call_soon(self._go_on_consuming, queue)
        else:
            self._go_on_consuming(queue)

    def _go_on_consuming(self, queue: str) -> None:
        consumer, queues = self._consumer.task_consumer, self.app.amqp.queues
        if queue in queues.consume_from and not consumer.consuming_from(queue):
            consumer.add_queue(queues[queue])
            consumer.consume()

    def call_after(self, seconds: float, callback: Callable[[], None]) -> Callable[[], None]:
        """Call ``callback`` on the worker's timer; returns what cancels it, unless it is being called."""
        timer, waiting = self._consumer.timer, [callback]

        def ring() -> None:
            if waiting:
                waiting.pop()()

        entry = timer.call_after(seconds, self._in_turn(self._contained(ring)))

        def cancel() -> None:
            if waiting:
                waiting.clear()
                if self._green:
                    _end_soon(entry)  # timer.cancel() would let other greenlets go on in the middle of ours
                else:
                    timer.cancel(entry)

        return cancel

    def recall(self, wanted: Callable[[Any], bool]) -> None:
        """Let those requests come now that were sent back and wait here for the end of their countdown."""
        called = deque(self._called_off(wanted))
        try:
            while called:
                _, come, args = called.popleft()
                come(*args)
        finally:
            for entry, come, args in called:
                entry.fun, entry.args = come, args

    def _called_off(self, wanted: Callable[[Any], bool]) -> list[tuple[Any, Callable[..., None], Sequence[Any]]]:
        """The timer's entries for them, by their time, with what they call: from now on they call nothing.

        All before the first comes: until it has, the timers of others could wake, and they would come twice.
        """
        timer = self._consumer.timer
        with getattr(timer, "mutex", nullcontext()):  # where it has a thread, which takes entries out
            if self._green:  # its queue is a set of greenlets, those included that are at work
                waiting = [(g.eta, g.entry) for g in timer.queue]
            else:
                waiting = [(eta, entry) for eta, _, entry in timer.queue if not entry.canceled]
            entries = [entry for _, entry in sorted(waiting, key=_first) if self._holds(entry, wanted)]
            found = [(entry, entry.fun, entry.args) for entry in entries]
            for entry in entries:
                entry.fun, entry.args = _nothing, ()
        return found

    def _holds(self, entry: Any, wanted: Callable[[Any], bool]) -> bool:
        """Whether a timer's entry is for such a request: strategy.py 200 and 212, consumer.py 378 and 734."""
        if getattr(entry.fun, "__name__", "") not in ("apply_eta_task", "_limit_post_eta"):
            return False
        request = entry.args[0]
        # A greenlet of its own may be at it; or it has come, and its greenlet is at others of its line.
        return self.came_back(request) and not hasattr(request.message, "ratelimit_came") and wanted(request)

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` in the worker's event loop, from any thread."""
        if self._apart:  # there call_soon waits for the next message, or two seconds
            self.call_after(0, callback)
        else:
            self._consumer.call_soon(callback)

    # -- What can be done with a request ---------------------------------------------------------------------------

    @staticmethod
    def queue_of(request: Any) -> str:
        """The queue that the task was sent to, also when it comes from that queue's return queue."""
        message = request.message
        marker = marker_in(message)
        if marker:
            return str(marker.get("queue"))
        return noted(message, "ratelimit_queue") or request.delivery_info.get("routing_key") or ""

    @staticmethod
    def came_back(request: Any) -> bool:
        return bool(marker_in(request.message))

    @staticmethod
    def comes_back_in(message: Any) -> float | None:
        """Seconds until the countdown of a message that is on its way back ends; None: it has none, or is on no way."""
        eta = (message.headers or {}).get("eta") if marker_in(message) else None
        try:
            return datetime.fromisoformat(eta).timestamp() - time.time() if eta else None
        except (TypeError, ValueError):
            return None

    @staticmethod
    def came_beside(request: Any) -> bool:
        """Whether it came by a return queue that is consumed beside its own: it is not part of the prefetch."""
        return hasattr(request.message, "ratelimit_beside")

    @staticmethod
    def age(request: Any) -> float:
        """Seconds since the broker has handed its message out: its countdown was spent here."""
        since = noted(request.message, "ratelimit_since")
        return time.monotonic() - since if since else 0.0

    @staticmethod
    def restore(request: Any) -> None:
        """Undo in a request what sending it back has changed, so that its task finds it as it was sent."""
        fields = request.request_dict
        marker = without_marker(fields)
        if marker:
            fields["eta"] = marker.get("eta")
            if "CC" in marker:
                fields["CC"] = marker["CC"]
            request.delivery_info["exchange"] = marker.get("exchange")
            request.delivery_info["routing_key"] = marker.get("routing_key")

    def start(self, request: Any, permit: Mapping[str, Any] | None = None) -> None:
        """Hand a request to the pool, as if the gate were not there; with its permit, if it has one."""
        if permit is not None:
            request.delivery_info[PERMIT] = {"worker": self.hostname, **permit}
        self._start(request)

    def redirect(self, request: Any, queue: str) -> None:
        """Publish the message as the user has sent it to another queue, and acknowledge this copy.

        A queue that is not there is made, as it would be for whoever sends a task to it.
        """
        self._publish_one(request, (parcel_of(request, queue, ""), 0.0, {}), self._declaration_of)
        self.let_go(request)

    def _declaration_of(self, name: str) -> Any:
        """A queue as the app's settings have it, without a trace in ``app.amqp.queues``: None if they have none."""
        queues = self.app.amqp.queues
        if name in queues:
            return queues[name]
        return self.app.amqp.Queues((queues.new_missing(name),))[name] if queues.create_missing else None

    def send_back(self, request: Any, queue: str, return_queue: str, delay: float, doubts: int = 0) -> None:
        """Publish the message again as it is, to come back after ``delay`` seconds, and acknowledge this copy.

        In that order: a crash between the two leaves a duplicate with the same id, never a gap. Raises what the publish
        raises; the message then is unacknowledged still. ``doubts``: see :func:`~..parcels.doubts_in`.
        """
        parcel = parcel_of(request, queue, return_queue, stored_id(request, queue))
        self._publish_one(request, (parcel, delay, {"again": doubts or True}))
        self.let_go(request)

    def _publish_one(
        self,
        request: Any,
        parcel: tuple[Parcel, float, Mapping[str, Any]],
        declaration: Callable[[str], Any] | None = None,
    ) -> None:
        for missing in self._outbox.publish(request.message.channel, [parcel], declaration):
            raise NoSuchQueue(missing)

    def let_go(self, request: Any) -> None:
        """Acknowledge a message that waits elsewhere from now on; the broker hears of it in a moment.

        On Redis together with others: there an acknowledgement costs a quarter of what it takes to park a message.
        """
        message = request.message
        if type(getattr(message.channel, "qos", None)) is not RedisQoS:
            request.acknowledge()
        elif not request.acknowledged:
            request.acknowledged = True
            virtual.QoS.ack(message.channel.qos, message.delivery_tag)  # kombu: another may come in now
            self._let_go.append(message)
            if len(self._let_go) >= MOST_LET_GO:
                self._acknowledge()
            elif self._acknowledge_later is None:
                self._acknowledge_later = self.call_after(LET_GO, self._acknowledge)
        state.task_ready(request)

    def _acknowledge(self) -> None:
        """What kombu's QoS.ack does for Redis (transport/redis.py 499 and 518), for many messages at once."""
        if self._acknowledge_later is not None:
            self._acknowledge_later()
            self._acknowledge_later = None
        messages, self._let_go = self._let_go, []
        if not messages:
            return
        qos = messages[0].channel.qos
        tags = [message.delivery_tag for message in messages]
        try:
            with qos.pipe_or_acquire() as pipe:
                pipe.zrem(qos.unacked_index_key, *tags).hdel(qos.unacked_key, *tags).execute()
        except BaseException:  # also of a greenlet that is killed
            self._let_go[:0] = messages
            self._acknowledge_later = self.call_after(1.0, self._acknowledge)
            raise
        for message in messages:
            message._state = "ACK"

    def close(self) -> None:
        """Tell the broker what it has not been told yet; if that fails it hands out once more what is parked."""
        try:
            self._acknowledge()
        except Exception as error:
            logger.debug("not acknowledged: %r", error)
            if self._acknowledge_later is not None:
                self._acknowledge_later()
        self._let_go, self._acknowledge_later = [], None

    def publish(self, parcels: Sequence[tuple[Parcel, float, Mapping[str, Any]]]) -> set[str]:
        """Publish messages that were parked, with their delays and markers; see :func:`publish`.

        Returns:
            Queues that the broker does not have; what was to go there was not published.
        """
        if self._few_countdowns:
            parcels = [(parcel, 0.0, marker) for parcel, _, marker in parcels]
        return self._outbox.publish(self._consumer.task_consumer.channel, parcels)

    @property
    def _on_amqp(self) -> bool:
        connection = self._consumer.connection  # None while Celery connects anew
        return connection is not None and bool(connection.transport.driver_type == "amqp")

    @property
    def connection_errors(self) -> tuple[type[BaseException], ...]:
        """What Celery has to see, or it will not connect anew: who waits for an answer may get the broker's farewell.

        Other transports see it themselves, when they read.
        """
        return tuple(self._consumer.connection_errors) if self._on_amqp and not self._apart else ()

    @property
    def _few_countdowns(self) -> bool:
        """Whether a worker takes nothing more when so many messages wait in it for their countdown."""
        return bool(self.app.conf.get("worker_eta_task_limit", None))

    @property
    def queues(self) -> list[str]:
        """The queues that this worker consumes for tasks, those included that it leaves alone for now."""
        return list(self._returns.queues)

    @property
    def hears_after(self) -> float:
        """Seconds after which the broker is asked for more, once a full prefetch has room again.

        Without an event loop (celery/worker/loops.py, synloop) a worker asks a broker that has to be asked, and whose
        messages may not come in now, no sooner than that (kombu/transport/virtual/base.py 999).
        """
        return 4.0 if self._apart and not self._on_amqp else 0.0

    @property
    def several_queues(self) -> bool:
        """Whether tasks come from more than one queue."""
        return len(self.queues) > 1

    def newly_revoked(self) -> list[str]:
        """The ids of tasks that were revoked since this was asked last, the newest first."""
        known = reversed(state.revoked._data)  # in a LimitedSet, celery/utils/collections.py: who comes, comes last
        new = list(itertools.takewhile(lambda id: id != self._newest_revoked, known))
        if new:
            self._newest_revoked = new[0]
        return new

    def announce(self, request: Any, fields: Mapping[str, Any]) -> None:
        """The event for monitors. ``task-throttled`` shows as state THROTTLED there."""
        request.send_event("task-throttled", **fields)

    def fail(self, request: Any, error: BaseException) -> None:
        """End a task with ``error`` as its own, without running it; see :func:`endings.fail`."""
        self.restore(request)
        endings.fail(request, error)

    def drop(self, request: Any, reason: str) -> None:
        """End a task without running it: state REVOKED with a reason, so that nobody waits for its result."""
        self.restore(request)
        endings.drop(request, reason)


_first = operator.itemgetter(0)


def _nothing() -> None:
    """What a timer does whose request has come already."""


def _end_soon(greenlet: Any) -> None:
    """End the greenlet of a green timer's entry, gevent's or eventlet's, without a switch to any other now."""
    gevent = sys.modules.get("gevent")
    if gevent is not None and isinstance(greenlet, gevent.Greenlet):
        greenlet.kill(block=False)
    else:
        sys.modules["eventlet"].spawn_n(greenlet.cancel)


def redelivery_of(app: Any) -> float:
    """Seconds after which an app's broker takes an unacknowledged message for lost."""
    with app.connection_for_read() as connection:
        default = _REDELIVERY.get(connection.transport.driver_type, 1800.0)
    options = app.conf.broker_transport_options or {}
    return float(options.get("visibility_timeout") or default)


def fleet_of(app: Any) -> str:
    """A short name for the broker that an app's messages go to: what its workers have in common."""
    with app.connection_for_write() as connection:
        urls = [re.sub("//[^@/]*@", "//", url) for url in connection.alt or [connection.as_uri()]]
    options = app.conf.broker_transport_options or {}
    said = [*sorted(urls), *(str(options.get(name, "")) for name in ("global_keyprefix", "master_name"))]
    return hashlib.sha1("\n".join(said).encode(), usedforsecurity=False).hexdigest()[:10]
