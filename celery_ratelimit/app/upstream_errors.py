"""A call refused by a task's upstream, seen in the process that runs the task: pauses the limit, and ends the run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from celery.utils.imports import symbol_by_name

from .._celery import ReturnToBacklog, requests
from ..errors import STORE_TROUBLES, ConfigurationError, UpstreamThrottled, shown
from ..limiter.limit_request import LimitRequest
from ..limiter.stored_settings import note_of
from ..limiter.upstream_methods import LONGEST_RETRY_AFTER, report_throttle
from ..limits.concurrency import Concurrency
from ..store.keys import short
from .kept import kept
from .plan import plan_of
from .settings import settings_of
from .state import limiter_of

__all__ = ["return_if_refused", "upstream_errors_of"]

logger = logging.getLogger("celery_ratelimit")

#: Returns the seconds for which the upstream wants no calls; ``None``: it has not said; or the error to raise instead.
ReadError = Callable[[Any], float | UpstreamThrottled | None]


def return_if_refused(task: Any, error: Exception) -> None:
    """End a task's run if its upstream has refused its call, and pause the limit; else do nothing.

    A run that was put back ``max_upstream_throttles`` times goes on with its error, and so does a task with
    ``throttle="fail"``.

    Raises:
        ReturnToBacklog: the worker puts the task back.
        Exception: the cause of an :class:`UpstreamThrottled` that is not put back.
        ConfigurationError: the error does not say which limit is meant.
    """
    request = task.request
    if request.called_directly or request.is_eager:
        return
    permit = requests.permit_in(request)
    refusal = _read(task, error) if permit is not None else None
    if permit is None or refusal is None:
        return
    plan = plan_of(task, permit["queue"])
    demands = plan.demands(request.args, request.kwargs) if plan is not None else ()
    if plan is None or not demands:
        return
    demand = _demand_of(task, demands, refusal.limit)
    if demand.name not in permit.get("shadow", ()):
        pause = _pause(task, demand, refusal, permit["granted_at"])
        most = getattr(task, "max_upstream_throttles", None)
        most = settings_of(task.app).max_upstream_throttles if most is None else most
        if plan.policy.throttle != "fail" and permit.get("upstream_throttles", 0) < most:
            raise ReturnToBacklog(demand.name, pause, permit["granted_at"]) from error
    if isinstance(error, UpstreamThrottled) and error.__cause__ is not None:
        raise error.__cause__


def _read(task: Any, error: Exception) -> UpstreamThrottled | None:
    """What the upstream has said; ``None``: the error is none of its refusals."""
    if isinstance(error, UpstreamThrottled):
        return error
    for kind, read in upstream_errors_of(task):
        if isinstance(error, kind):
            said = read(error)
            return said if isinstance(said, UpstreamThrottled) else UpstreamThrottled(said)
    return None


def _demand_of(task: Any, demands: tuple[LimitRequest, ...], name: str | None) -> LimitRequest:
    """The demand on the limit of that name, or on the only one that is no :class:`Concurrency`, or the only one."""
    rates = [demand for demand in demands if not isinstance(demand.limit, Concurrency)]
    meant = [demand for demand in demands if demand.name == name] if name is not None else rates or list(demands)
    if len(meant) != 1:
        raise ConfigurationError(
            f"task {task.name!r}: the upstream has refused a call, and limit={name!r} is not one of its limits "
            f"({', '.join(demand.name for demand in demands)}): raise UpstreamThrottled(limit=…) with one of these"
        )
    return meant[0]


def _pause(task: Any, demand: LimitRequest, refusal: UpstreamThrottled, granted_at: int) -> float:
    """Pause the limit; returns the seconds of the pause. A store that does not answer pauses nothing."""
    limiter, request = limiter_of(task.app), task.request
    if refusal.key is not None:
        demand = LimitRequest(demand.limit, demand.name, short(refusal.key))
    note = note_of(f"429 of task {task.name}"[:200], f"of task {request.id}"[:200])
    try:
        report = report_throttle(limiter._asker.core, demand, refusal.retry_after, granted_at or None, note)
        return limiter._asker.drive(report)
    except STORE_TROUBLES as error:
        pause = min(max(1.0, refusal.retry_after or 0.0), LONGEST_RETRY_AFTER)
        logger.warning(
            "Task %s[%s]: its upstream has refused its call, and limit %r cannot be paused for the fleet (%r): the "
            "task returns in %.3f s",
            *(task.name, request.id, demand.name, error, pause),
        )
        return pause


# -- Declared errors ---------------------------------------------------------------------------------------------------


def upstream_errors_of(task: Any) -> list[tuple[type[BaseException], ReadError]]:
    """The errors that are refusals by a task's upstream, each with what reads it: the task's own, then the app's.

    Raises:
        ConfigurationError: one that cannot be imported, or is no class of errors, or cannot be read.
    """
    known: dict[str, list[tuple[type[BaseException], ReadError]]] = kept(task.app, "upstream errors", dict)
    if task.name not in known:
        own = getattr(task, "upstream_errors", None) or {}
        where = f"task {task.name!r}: upstream_errors"
        of_app = settings_of(task.app).upstream_errors
        known[task.name] = [*_resolved(own, where), *_resolved(of_app, "ratelimit_upstream_errors")]
    return known[task.name]


def _resolved(declared: Any, where: str) -> Iterator[tuple[type[BaseException], ReadError]]:
    if not isinstance(declared, Mapping):
        raise ConfigurationError(f"{where}={shown(declared)} must be a mapping of classes of errors to functions")
    for kind, read in declared.items():
        try:
            found, reads = symbol_by_name(kind), symbol_by_name(read)
        except (ImportError, AttributeError, ValueError) as error:
            raise ConfigurationError(f"{where}: {kind!r} or {read!r} cannot be imported ({error})") from error
        if not isinstance(found, type) or not issubclass(found, Exception) or not callable(reads):
            raise ConfigurationError(
                f"{where}: {shown(kind)}: {shown(read)} must be a class of errors, or its dotted name, with a function "
                "that gets the error and returns the seconds for which the upstream wants no calls, or None"
            )
        yield found, reads
