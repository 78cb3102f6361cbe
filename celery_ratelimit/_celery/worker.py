"""The parts of a worker's consumer, and how the gate is put before its pool.

What is relied on; line numbers are of Celery and kombu 5.7.0.

* ``Consumer.on_task_request`` (celery/worker/consumer/consumer.py 221): every message that passed revocation,
  ETA and Celery's own ``rate_limit`` goes through it. It is read by the task strategies when they are built
  (celery/worker/strategy.py 123), which is after the consumer's bootsteps are made, and at call time by
  ``apply_eta_task`` and ``_limit_move_to_pool``.
* ``Consumer.gossip`` knows the workers of the fleet, where it is ``enabled`` (celery/worker/consumer/gossip.py 38).
* ``state.revoked._data``, of a LimitedSet (celery/utils/collections.py): the newest comes last.
* ``Consumer.perform_pending_operations`` (consumer.py 305): without an event loop Celery before 5.7 keeps an
  acknowledgement for the next turn, and forgets what it has when it ends: their tasks, which have run, would come
  once more.
* ``state.should_stop`` and ``should_terminate`` (celery/worker/state.py 141): set by the handlers of signals; the loop
  looks at them once a turn, and the worker closes its connection before the tasks that run have ended.
* ``WorkController.wait_for_soft_shutdown`` (celery/worker/worker.py 501, since Celery 5.5) sleeps in the handler of the
  signal, before ``should_terminate`` is set: the worker's loop stands still, or goes on where it is green.
* A prefork pool is a ``prefork.TaskPool`` (celery/concurrency/prefork.py).
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import threading
from collections.abc import Callable, Mapping
from typing import Any

from celery.concurrency import prefork
from celery.worker import state

from .autoscaler_patch import Autoscaling
from .broker import Broker
from .bulk_acknowledge import BulkAcknowledge
from .bulk_receive import BulkReceive
from .channel_patches import raise_loss
from .consumed_queues import ConsumedQueues
from .end_without_run import FinalStates
from .message_fields import stamp
from .pool import Pool
from .publisher import Publisher, Republisher
from .requests import PERMIT, note_arrived
from .return_addresses import ReturnAddresses, ReturnNames
from .saved_message import upstream_throttles_in
from .timers import Timers
from .upstream_refusal import ReturnToBacklog

__all__ = ["Worker"]


class Worker:
    """One worker's consumer. Each part is an attribute, described in its class.

    Args:
        consumer: a ``celery.worker.consumer.Consumer`` that is being made (its strategies are not built yet).
    """

    _in_soft_shutdown = False

    def __init__(self, consumer: Any) -> None:
        self.app: Any = consumer.app
        self.hostname: str = consumer.hostname
        self._consumer = consumer
        self._start = consumer.on_task_request
        raise_loss(consumer)
        self._newest_revoked: str | None = next(reversed(state.revoked._data), None)
        self.pool: Pool = Pool(consumer.pool)
        self.broker: Broker = Broker(consumer)
        self.timers: Timers = Timers(consumer, self.broker)
        self.autoscaling: Autoscaling = Autoscaling(consumer)
        publisher = Publisher(self.app, self.broker)
        self.acknowledgements: BulkAcknowledge = BulkAcknowledge(self.timers)
        self.bulk_receive: BulkReceive = BulkReceive(self.broker)
        self.return_addresses: ReturnAddresses = ReturnAddresses(consumer, ReturnNames(consumer), publisher)
        self.consumption: ConsumedQueues = ConsumedQueues(
            consumer, self.broker, self.return_addresses, self.bulk_receive
        )
        self.republisher: Republisher = Republisher(
            consumer, self.broker, self.acknowledgements, publisher, self.return_addresses
        )

    def intercept(
        self,
        on_request: Callable[[Any], None],
        on_end: Callable[[Any], None],
        on_message: Callable[[Any], None],
        on_error: Callable[[Any, Exception], None],
        on_revoked: Callable[[Any, Any, bool], None],
        on_refusal: Callable[[Any, ReturnToBacklog], None],
    ) -> None:
        """Direct each request to ``on_request`` instead of the pool.

        Args:
            on_request: handles a request.
            on_end: is called when a request's task has ended.
            on_message: is called with each message that is delivered, before its countdown.
            on_error: handles an error that a request has raised in the gate or the pool.
            on_revoked: is called with a task that ends as revoked, its context, and whether it has expired.
            on_refusal: is called with a request whose upstream has refused its call, in the place of Celery's callback.
        """

        def arrive(request: Any) -> None:
            note_arrived(request)
            stamp(request.message, ratelimit_final_states=self.final_states)
            try:
                on_request(request)
            except Exception as error:
                if isinstance(error, self.broker.connection_errors):
                    raise
                on_error(request, error)

        def delivered(message: Any) -> None:
            stamp(message, ratelimit_final_states=self.final_states)
            self.consumption.correct_queue(message)
            on_message(message)

        consumer, timers = self._consumer, self.timers
        self._on_error = on_error
        self.final_states: FinalStates = FinalStates(timers, self.consumption.prefetch, on_revoked)
        consumer.on_task_request = timers.locked(arrive)
        self.pool.survive_reconnect(consumer)
        on_refusal = timers.locked(timers.guarded(on_refusal))
        self.pool.watch(timers.on_gate_thread(timers.locked(timers.guarded(on_end))), on_refusal)
        timers.fire_on_time()
        self.consumption.watch(timers.locked(timers.guarded(delivered)))

    def start(self, request: Any, permit: Mapping[str, Any] | None = None) -> None:
        """Start a request in the pool, with its permit, if it has one."""
        if permit is not None:
            throttles = upstream_throttles_in(request.message.headers)
            counted = {"upstream_throttles": throttles} if throttles else {}
            fields = request.request_dict
            fields["properties"] = {**fields["properties"], PERMIT: {"worker": self.hostname, **permit, **counted}}
        try:
            self._start(request)
        except Exception as error:  # a time limit that is no number, for one
            if isinstance(error, self.broker.connection_errors):
                raise
            self._on_error(request, error)

    def flush_pending(self) -> None:
        """Run the operations that wait for a turn of the worker's loop: it ends without one."""
        with contextlib.suppress(ConnectionResetError):  # of raise_loss
            self._consumer.perform_pending_operations()

    def during_soft_shutdown(self, poll: Callable[[], None], interval: float) -> None:
        """Call ``poll`` in a thread, from time to time, while a soft shutdown waits; nothing starts from then on."""
        controller, over = self._consumer.controller, threading.Event()
        wait: Any = getattr(controller, "wait_for_soft_shutdown", None)

        def poll_until_over() -> None:
            while not over.wait(interval):
                poll()

        def waits() -> None:
            self._in_soft_shutdown = True
            threading.Thread(target=poll_until_over, name="celery_ratelimit-soft-shutdown", daemon=True).start()
            try:
                wait()
            finally:
                over.set()

        if wait is not None:
            controller.wait_for_soft_shutdown = functools.wraps(wait)(waits)

    # -- Its state -------------------------------------------------------------------------------------------------

    @property
    def is_prefork(self) -> bool:
        """Whether tasks run in child processes."""
        return isinstance(self._consumer.pool, prefork.TaskPool)

    def live_workers(self) -> int:
        """Workers of the fleet that gossip knows, this one included; at least 1."""
        return 1 + len(self._others())

    @property
    def is_stopping(self) -> bool:
        """Whether a stop has begun, warm, soft or cold: a task that starts now would run again after the restart."""
        stop, terminate = state.should_stop, state.should_terminate  # an exit code, which may be 0; or None or False
        cold = terminate is not None and terminate is not False
        return self._in_soft_shutdown or cold or (stop is not None and stop is not False)

    def keeps_only_process(self) -> bool:
        """Whether this worker, if its pool has one process, keeps it for brief tasks: the first one by name does.

        False for the only worker of a fleet, and without gossip.
        """
        others = self._others()
        return bool(others) and self.hostname < min(others)

    def _others(self) -> set[str]:
        """The other workers of the fleet that gossip knows."""
        if not self.can_gossip:
            return set()
        return {worker.hostname for worker in self._consumer.gossip.state.alive_workers()} - {self.hostname}

    @property
    def can_gossip(self) -> bool:
        gossip = getattr(self._consumer, "gossip", None)
        return bool(gossip is not None and gossip.enabled)

    def newly_revoked(self) -> list[str]:
        """The ids of tasks that were revoked since the last call, the newest first."""
        new = list(itertools.takewhile(lambda id: id != self._newest_revoked, reversed(state.revoked._data)))
        if new:
            self._newest_revoked = new[0]
        return new
