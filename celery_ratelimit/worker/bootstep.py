"""Puts the gate into a worker: the consumer's bootstep, and ``install(app)``."""

from __future__ import annotations

from typing import Any, NoReturn

import click
from celery import Celery, bootsteps, signals

from .._celery import Worker, add_to_banner, show_revoked_state
from ..app.observers import observers_of
from ..app.plan import AppLimits, node_of
from ..app.settings import settings_of
from ..app.state import check_store, leases_of, limiter_of
from ..app.survey import limits_shown
from ..backlog import start_checks
from ..errors import ConfigurationError, StoreUnavailable
from .gate import Gate

__all__ = ["GateStep", "install"]


def install(app: Celery) -> None:
    """Throttle the tasks of ``app`` by ``ratelimit_tasks`` and ``ratelimit_queues``, whatever their class.

    Call it where the app is made; once or more often is the same. It takes effect when a worker starts, on every
    pool. Nothing changes for processes that only send tasks. A task that also uses
    :class:`~celery_ratelimit.RateLimitedTask` pays once. Workers that the ``celery`` command starts have the gate
    anyway as soon as there is a limit, and so have workers of a process that has imported anything of this package.

    *Warning*: the gate stands in the worker. A worker without it (another program that consumes the same queue)
    runs these tasks unthrottled; tasks of the base class ask for themselves there.
    """
    app.steps["consumer"].add(GateStep)


class GateStep(bootsteps.StartStopStep):
    """A bootstep of the worker's consumer that puts a :class:`~celery_ratelimit.worker.gate.Gate` before the pool.

    It is made before the consumer builds its task strategies, so that they all go through the gate.
    """

    #: Asked at start-up whether it is there.
    requires = ("celery.worker.consumer.gossip:Gossip",)

    def __init__(self, consumer: Any, **kwargs: Any) -> None:
        super().__init__(consumer, **kwargs)
        self.gate: Gate | None = None
        self._lost: StoreUnavailable | None = None
        app = consumer.app
        try:
            observers = observers_of(app)
            settings = settings_of(app)
            node_of(app, consumer.hostname)
            limited = AppLimits(app)
            # Its settings may mean tasks that are registered later; or what it had limits for before is still there.
            if not limited and not settings.tasks and not start_checks.left_something(app):
                start_checks.warn(app, limited, ask_store=False)
                return
            add_to_banner(consumer.controller, "limits", limits_shown(app))
            worker = Worker(consumer)
            if settings.in_memory:
                start_checks.check_memory(app, is_prefork=worker.is_prefork)
            self._lost = check_store(app)
            start_checks.warn(app, limited, ask_store=self._lost is None)
            if settings.on_store_error == "local" and not worker.can_gossip:
                raise ConfigurationError(
                    "ratelimit_on_store_error='local' divides the limits by the number of live workers, which only "
                    "gossip knows: start the workers without --without-gossip, or choose 'defer'"
                )
        except ConfigurationError as error:
            _refuse_to_start(error)
        self.gate = gate = Gate(worker, limiter_of(app), leases_of(app), settings, limited, observers)
        worker.intercept(gate.on_request, gate.on_end, gate.on_message, gate.on_error)
        worker.consumption.consume_return_queues(settings.return_queue_for)

    def start(self, consumer: Any) -> None:
        if self.gate is not None:
            show_revoked_state(consumer)
            if self._lost is not None:
                self.gate.start_without_store(self._lost, lambda: start_checks.check_again(consumer.app))
                self._lost = None
            self.gate.begin()
            signals.task_revoked.connect(self._on_revoked, weak=False, dispatch_uid=id(self))

    def stop(self, consumer: Any) -> None:
        if self.gate is not None:
            signals.task_revoked.disconnect(dispatch_uid=id(self))
            self.gate.close()

    def close(self, consumer: Any) -> None:
        self.stop(consumer)
        if self.gate is not None:
            self.gate.worker.flush_pending()

    def _on_revoked(self, sender: Any = None, request: Any = None, **_: Any) -> None:
        if self.gate is not None:
            self.gate.on_revoked(sender, request)

    # Called on the way down, at a lost connection, and when the worker ends: the gate lets go each time.
    terminate = shutdown = stop


def _refuse_to_start(error: ConfigurationError) -> NoReturn:
    """From the command line: the message alone. A traceback through Celery would bury it."""
    if click.get_current_context(silent=True) is not None:
        raise click.ClickException(str(error)) from None
    raise error
