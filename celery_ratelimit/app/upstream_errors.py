"""A call refused by a task's upstream, seen in the process that runs the task: ends the run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from celery.utils.imports import symbol_by_name

from .._celery import ReturnToBacklog, requests
from ..errors import STORE_TROUBLES, ConfigurationError, shown
from ..feedback import UpstreamThrottled
from ..limiter.limit_request import LimitRequest, own_key
from ..limiter.setting_operations import LONGEST, note_of
from ..limiter.sync_store import StoreRunner
from ..limiter.upstream_methods import Paused, report_throttle
from ..limits.any_limit import AnyLimit
from ..limits.concurrency import Concurrency
from ..limits.key_rates import limit_of_key, whole_limit
from ..limits.stored_settings import REFUSED
from ..store.keys import short
from .app_attributes import kept
from .app_store import limiter_of
from .permits import demands_in
from .plan import plan_of
from .settings import settings_of

__all__ = ["key_meant", "report_refusal", "return_if_refused", "upstream_errors_of"]

#: Returns the seconds for which the upstream wants no calls; ``None``: it has not said; or the error to raise instead.
ReadError = Callable[[Any], float | UpstreamThrottled | None]


def return_if_refused(task: Any, error: Exception) -> None:
    """End a task's run if its upstream has refused its call; else do nothing.

    A task that was put back ``max_upstream_throttles`` times goes on with its error, and so does one with
    ``throttle="fail"``: then the limit is paused here.

    Raises:
        ReturnToBacklog: the worker puts the task back.
        Exception: the error, or the cause of an :class:`UpstreamThrottled`, of a task that is not put back.
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
    if plan is None:
        return
    demands = demands_in(permit, plan)
    if not demands:
        return
    demand = _demand_of(task, demands, refusal)
    if demand.name not in permit.get("shadow", ()):
        back = ReturnToBacklog(demand.name, refusal.key, refusal.retry_after, permit["granted_at"])
        most = getattr(task, "max_upstream_throttles", None)
        most = settings_of(task.app).max_upstream_throttles if most is None else most
        if plan.policy.throttle != "fail" and permit.get("upstream_throttles", 0) < most:
            raise back from error
        with suppress(*STORE_TROUBLES):
            report_refusal(limiter_of(task.app)._asker, demand, back, task.name, request.id, plan.node)
    # Raised again, the error is no failure for a breaker.
    raise (error.__cause__ if isinstance(error, UpstreamThrottled) else None) or error


def report_refusal(
    asker: StoreRunner,
    demand: LimitRequest,
    refusal: ReturnToBacklog,
    task: str,
    id: str,
    node: str,
    *,
    takes: bool = False,
) -> Paused:
    """Pause the limit of ``demand``.

    Args:
        task, id: whose call was refused.
        node: has its own buckets under ``per_worker``.
        takes: see :func:`report_throttle`.
    """
    if refusal.key is not None:
        limit = limit_of_key(whole_limit(demand.limit), short(refusal.key))
        demand, takes = LimitRequest(limit, demand.name, key_meant(limit, refusal.key, node)), False
    note = note_of(f"{REFUSED} {task}"[:LONGEST], f"of task {id}"[:LONGEST])
    granted_at = refusal.granted_at or None
    return asker.drive(report_throttle(asker.core, demand, note, refusal.retry_after, granted_at, takes=takes))


def key_meant(limit: AnyLimit, key: str, node: str) -> str:
    """The bucket's key that an upstream's refusal names; ``""``: the whole limit."""
    return own_key(limit, key, node) if key else ""


def _read(task: Any, error: Exception) -> UpstreamThrottled | None:
    """What the upstream has said; ``None``: the error is none of its refusals."""
    if isinstance(error, UpstreamThrottled):
        return error
    for kind, read in upstream_errors_of(task):
        if isinstance(error, kind):
            said = read(error)
            return said if isinstance(said, UpstreamThrottled) else UpstreamThrottled(said)
    return None


def _demand_of(task: Any, demands: tuple[LimitRequest, ...], refusal: UpstreamThrottled) -> LimitRequest:
    """The demand on the limit that is named, or on the only one that is no :class:`Concurrency`, or the only one."""
    rates = [demand for demand in demands if not isinstance(demand.limit, Concurrency)]
    named = [demand for demand in demands if demand.name == refusal.limit]
    meant = named if refusal.limit is not None else rates or list(demands)
    if len(meant) != 1:
        raise ConfigurationError(
            f"task {task.name!r}: limit={shown(refusal.limit)} of {type(refusal).__name__} is not one of its limits "
            f"({', '.join(demand.name for demand in demands)}): name one of these"
        )
    if refusal.key and meant[0].limit.key is None:
        raise ConfigurationError(
            f"task {task.name!r}: key={shown(refusal.key)} of {type(refusal).__name__}, but limit {meant[0].name!r} "
            "has no keys: leave key= out"
        )
    return meant[0]


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
