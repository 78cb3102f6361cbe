"""Puts the gate into a worker: the consumer's bootstep, and ``install(app)``."""

from __future__ import annotations

import logging
from typing import Any, NoReturn

import click
from celery import Celery, bootsteps, signals

from ._celery import Worker
from .binding import AppLimits, node_of
from .config import Settings, check_store, forks_apart, leases_of, limiter_of, settings_of
from .errors import ConfigurationError
from .gate import Gate

__all__ = ["GateStep", "install"]

logger = logging.getLogger("celery_ratelimit")


def install(app: Celery) -> None:
    """Throttle the tasks of ``app`` by ``ratelimit_tasks`` and ``ratelimit_queues``, whatever their class.

    Call it where the app is made; once or more often is the same. It takes effect when a worker starts, on every
    pool. Nothing changes for processes that only send tasks. A task that also uses
    :class:`~celery_ratelimit.RateLimitedTask` pays once.

    *Warning*: the gate stands in the worker. A worker without it (another program that consumes the same queue)
    runs these tasks unthrottled; tasks of the base class ask for themselves there.
    """
    app.steps["consumer"].add(GateStep)


class GateStep(bootsteps.StartStopStep):
    """A bootstep of the worker's consumer that puts a :class:`~celery_ratelimit.gate.Gate` before the pool.

    It is made before the consumer builds its task strategies, so that they all go through the gate.
    """

    #: Asked at start-up whether it is there.
    requires = ("celery.worker.consumer.gossip:Gossip",)

    def __init__(self, consumer: Any, **kwargs: Any) -> None:
        super().__init__(consumer, **kwargs)
        self.gate: Gate | None = None
        app = consumer.app
        try:
            settings = settings_of(app)
            node_of(app, consumer.hostname)
            limited = AppLimits(app)
            if not limited and not settings.tasks:  # which may mean tasks that are registered later
                return
            worker = Worker(consumer)
            if settings.in_memory:
                _check_memory(worker, settings)
            check_store(app)
            if settings.on_store_error == "local" and not worker.can_gossip:
                raise ConfigurationError(
                    "ratelimit_on_store_error='local' divides the limits by the number of live workers, which only "
                    "gossip knows: start the workers without --without-gossip, or choose 'defer'"
                )
        except ConfigurationError as error:
            _refuse_to_start(error)
        self.gate = gate = Gate(worker, limiter_of(app), leases_of(app), settings, limited)
        worker.intercept(gate.on_request, gate.on_end, gate.on_message, gate.on_error)
        worker.consume_return_queues(settings.return_queue_for)

        def revoked(sender: Any = None, request: Any = None, **_: Any) -> None:
            gate.forget(sender, request)

        signals.task_revoked.connect(revoked, weak=False, dispatch_uid=f"celery_ratelimit-{id(consumer)}")

    def start(self, consumer: Any) -> None:
        if self.gate is not None:
            self.gate.begin()

    def stop(self, consumer: Any) -> None:
        if self.gate is not None:
            self.gate.close()

    # Called on the way down, at a lost connection, and when the worker ends: the gate lets go each time.
    close = terminate = shutdown = stop


def _check_memory(worker: Worker, settings: Settings) -> None:
    if worker.forks:
        raise forks_apart(settings.url)
    logger.warning(
        "ratelimit_url=%r: limits are counted in this process alone. Another worker, or a process that only asks, "
        "has buckets of its own",
        settings.url,
    )


def _refuse_to_start(error: ConfigurationError) -> NoReturn:
    """From the command line: the message alone. A traceback through Celery would bury it."""
    if click.get_current_context(silent=True) is not None:
        raise click.ClickException(str(error)) from None
    raise error
