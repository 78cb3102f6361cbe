"""Puts the gate into a worker: the consumer's bootstep with its checks, and ``install(app)``."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

import click
from celery import Celery, bootsteps

from .._celery import Worker, add_to_banner, call_when_body_ends, show_revoked_state
from ..app.app_limits import AppLimits
from ..app.app_store import check_store, leases_of, limiter_of
from ..app.breaker_outcomes import report_outcome
from ..app.limit_conflicts import declare
from ..app.observers import observers_of
from ..app.plan import node_of
from ..app.settings import forks_apart, settings_of
from ..app.survey import forgotten, limits_shown
from ..app.upstream_errors import return_if_refused, upstream_errors_of
from ..backlog.backlog import Backlog, backlog_of
from ..errors import STORE_TROUBLES, ConfigurationError, StoreUnavailable
from ..store.url_text import without_password
from .gate import Gate

__all__ = ["GateStep", "install"]

logger: logging.Logger = logging.getLogger("celery_ratelimit")

_T = TypeVar("_T")


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
    requires: tuple[str, ...] = ("celery.worker.consumer.gossip:Gossip",)

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
            if not limited and not settings.tasks and not _left_something(app):
                _warn(app, limited, ask_store=False)
                return
            for task in list(app.tasks.values()):
                upstream_errors_of(task)  # finds invalid ones early
                call_when_body_ends(task, return_if_refused, report_outcome)
            add_to_banner(consumer.controller, "limits", "\n".join(f"  . {each}" for each in limits_shown(app)))
            worker = Worker(consumer)
            worker.broker.return_queue_for = settings.return_queue_for
            if settings.in_memory:
                _check_memory(app, is_prefork=worker.is_prefork)
            self._lost = check_store(app)
            _warn(app, limited, ask_store=self._lost is None)
            if settings.on_store_error == "local" and not worker.can_gossip:
                raise ConfigurationError(
                    "ratelimit_on_store_error='local' divides the limits by the number of live workers, which only "
                    "gossip knows: start the workers without --without-gossip, or choose 'defer'"
                )
        except ConfigurationError as error:
            _refuse_to_start(error)
        self.gate = gate = Gate(worker, limiter_of(app), leases_of(app), settings, limited, observers)
        on_refusal = gate.upstream_returns.put_back
        worker.intercept(gate.on_request, gate.on_end, gate.on_message, gate.on_error, gate.on_revoked, on_refusal)
        worker.consumption.consume_return_queues(settings.return_queue_for)

    def start(self, consumer: Any) -> None:
        if self.gate is not None:
            show_revoked_state(consumer)
            if self._lost is not None:
                self.gate.start_without_store(self._lost, lambda: _check_again(consumer.app))
                self._lost = None
            self.gate.begin()

    def stop(self, consumer: Any) -> None:
        if self.gate is not None:
            self.gate.close()

    def close(self, consumer: Any) -> None:
        if self.gate is not None:
            self.gate.worker.final_states.close(stopping=True)
        self.stop(consumer)
        if self.gate is not None:
            self.gate.worker.flush_pending()

    # Called on the way down, at a lost connection, and when the worker ends: the gate lets go each time.
    terminate = stop
    shutdown = stop


def _refuse_to_start(error: ConfigurationError) -> NoReturn:
    """From the command line: the message alone. A traceback through Celery would bury it."""
    if click.get_current_context(silent=True) is not None:
        raise click.ClickException(str(error)) from None
    raise error


def _left_something(app: Any) -> bool:
    """Whether workers of this fleet have had limits: tasks of these may be parked or on their return."""
    seen = _ask(app, lambda backlog: backlog.register.seen(), None)
    return seen is not None and bool(seen.limits or seen.returns)


def _warn(app: Any, limited: AppLimits, *, ask_store: bool) -> None:
    """Log likely mistakes in the app's settings; ``ask_store``: also mistakes that only the store can show."""
    warnings = forgotten(app, _ask(app, lambda backlog: backlog.register.consumed(), set()) if ask_store else ())
    if ask_store and not settings_of(app).in_memory:
        with contextlib.suppress(*STORE_TROUBLES):
            warnings += declare(limiter_of(app)._asker, limited)
    for warning in warnings:
        logger.warning("%s", warning)


def _check_memory(app: Any, *, is_prefork: bool) -> None:
    """Warn that ``memory://`` counts limits in one process only.

    Raises:
        ConfigurationError: tasks run in other processes (prefork).
    """
    url = settings_of(app).url
    if is_prefork:
        raise forks_apart(url)
    logger.warning(
        "ratelimit_url=%r: limits are counted in this process alone. Another worker, or a process that only asks, "
        "has buckets of its own",
        without_password(url),
    )


def _check_again(app: Any) -> None:
    """Check a store that was lost when the worker started. An unfit store is logged; the worker goes on."""
    try:
        check_store(app)
    except ConfigurationError as error:
        logger.error("%s", error)


def _ask(app: Any, question: Callable[[Backlog], _T], otherwise: _T) -> _T:
    """The store's reply about the app's fleet; ``otherwise`` if the store does not reply."""
    backlog = backlog_of(app)
    try:
        return question(backlog) if backlog.can_park else otherwise
    except STORE_TROUBLES:
        return otherwise
