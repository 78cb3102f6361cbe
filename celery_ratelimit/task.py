"""The task class whose limits hold for the whole fleet."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from celery import Celery, Task

from ._celery import call_when_body_ends, requests
from .acquire_in_task import acquire_in_task, return_in_task
from .app.app_store import leases_of, limiter_of
from .app.breaker_outcomes import report_outcome
from .app.permits import demands_in
from .app.plan import plan_of
from .errors import STORE_TROUBLES, ConfigurationError
from .limiter.argument_checks import actual_costs, check_actual
from .worker.bootstep import install

__all__ = ["RateLimitedMixin", "RateLimitedTask"]

if TYPE_CHECKING:
    _Task: TypeAlias = Task[..., Any]
else:  # before Celery 5.7 it has no type arguments
    _Task = Task

logger: logging.Logger = logging.getLogger("celery_ratelimit")


class RateLimitedMixin:
    """The behaviour of :class:`RateLimitedTask`, as a mixin for other task classes, such as Django's::

    class MyTask(RateLimitedMixin, DjangoTask): ...
    """

    limits: ClassVar[Any] = None
    throttle: ClassVar[str] = "retry"
    inline_wait: ClassVar[float | None] = None
    max_wait: ClassVar[float | None] = None
    overflow: ClassVar[str] = "fail"
    coalesce: ClassVar[str | None] = None
    coalesce_key: ClassVar[Any] = None
    upstream_errors: ClassVar[Mapping[Any, Any] | None] = None
    max_upstream_throttles: ClassVar[int | None] = None

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        task = super().__new__(cls)
        if hasattr(task, "run"):
            call_when_body_ends(task, return_in_task, report_outcome)
        return task

    @classmethod
    def on_bound(cls, app: Celery) -> None:
        """Bind the class to its app, whose workers have the gate from now on."""
        install(app)
        super().on_bound(app)  # type: ignore[misc]

    def before_start(self, task_id: str, args: Any, kwargs: Any) -> None:
        """Acquire the permit if no gate has; not for direct and eager calls."""
        acquire_in_task(self, task_id, args, kwargs)
        super().before_start(task_id, args, kwargs)  # type: ignore[misc]

    def after_return(self, status: str, retval: Any, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
        """Release the leases that were taken here."""
        permit = requests.permit_in(self.request)  # type: ignore[attr-defined]
        if permit is not None:
            with contextlib.suppress(*STORE_TROUBLES):  # the lease keeper tries again
                leases_of(self.app).end(permit["id"])  # type: ignore[attr-defined]
        super().after_return(status, retval, task_id, args, kwargs, einfo)  # type: ignore[misc]

    def settle(
        self, actual_cost: int | Mapping[str, int] | None = None, *, limit: str | None = None, **costs: int
    ) -> bool:
        """Correct the cost of this call of the task, once it is known; from within the task.

        As :meth:`Limiter.settle <celery_ratelimit.Limiter.settle>`; ``settle(tokens=1234)`` names limits as keywords.
        Returns False if nothing was charged: in a direct call, in eager mode, or while the store was lost.

        Raises:
            ConfigurationError: no such limit; names the limits of the call.
        """
        if (actual_cost is None) is not bool(costs):
            raise ConfigurationError(
                f"task {self.name!r}: settle takes either permits, as settle(1234), or limits by name, as "  # type: ignore[attr-defined]
                "settle(tokens=1234)"
            )
        return _settle(self, costs if actual_cost is None else actual_cost, limit)


class RateLimitedTask(RateLimitedMixin, _Task):
    """A task that starts only when its limits allow it, counted over every worker of the fleet.

    >>> @app.task(base=RateLimitedTask, limits="100/s")
    ... def charge(order_id): ...

    A task that may not start yet is *throttled*: it does not reach a pool process, is not marked as started, failed or
    retried, and returns at its own slot. ``retries`` and ``max_retries`` are not changed. A direct call ``charge(1)``
    and eager mode are not throttled.

    Args (options of ``@app.task``):
        limits: a rate, a quota's name, a :class:`~celery_ratelimit.Limit`, a :class:`~celery_ratelimit.Concurrency`, or
            a list of these.
        throttle: handling of a throttled task. ``"retry"``: its message is parked in the store and published again
            shortly before its slot; unlimited tasks behind it go on. ``"wait"``: the task is held in the worker, the
            backlog stays in the broker and nothing is sent again; best on a queue of its own. ``"drop"``: the task ends
            as REVOKED. ``"fail"``: it fails with :class:`~celery_ratelimit.Throttled`.
        inline_wait: seconds that a task which is slightly early may be held in the worker, in every mode. Default:
            0.02; 0 if all limits are :class:`~celery_ratelimit.Concurrency`.
        max_wait: seconds; a task whose slot is further away is given up. ``None``, the default: it waits for ever.
        overflow: handling of a task that is given up, or finds a leaky bucket full or ``max_parked`` tasks parked:
            ``"fail"`` (the default), ``"drop"``, or the name of a queue, to which it is sent unchanged and where it
            waits without a bound.
        coalesce: of equal tasks of this name that wait in the store, one stays: ``"newest"`` (at the position of the
            task that it replaces) or ``"oldest"``. The others end as REVOKED, with a reason that names the task that
            stays. For work that is done once for all callers: a refresh, a sync. Tasks of a chord, chain or group, and
            tasks with links, are never dropped. ``throttle="retry"`` only.
        coalesce_key: makes tasks equal: a template over the arguments (``"{account_id}"``), or a callable that gets
            them. Default: all arguments.
        upstream_errors: errors of the task that are refusals by its upstream, as :class:`UpstreamThrottled` is: each
            class with a function that gets the error and returns the seconds for which the upstream wants no calls,
            or ``None``. Default: ``ratelimit_upstream_errors``, which holds besides.
        max_upstream_throttles: how often the task is put back after its upstream has refused its call. Then it fails
            with the upstream's error. Default: ``ratelimit_max_upstream_throttles``, 20.

    If the app has its own task class (``task_cls``, as with Django), its tasks are of that class, too.

    A method ``on_throttled_out(outcome, task_id, args, kwargs)``, if the task has it, is called where a limit ends the
    task without a run (``signals.task_throttled_out``).

    *Warning*: a worker without the gate acquires in ``before_start``. An override must call ``super()``.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        _build_on_the_apps_own(cls)


def _build_on_the_apps_own(cls: type) -> None:
    """Add the app's own task class to the bases of the class that ``@app.task(base=…)`` makes.

    Usually that is Django's (``delay_on_commit``), which Celery omits where another base is named.
    """
    app = vars(cls).get("app")
    if not isinstance(app, Celery) or "_decorated" not in vars(cls):
        return  # a user's own class, with bases of its own
    own = app.Task.__mro__[1]  # Celery has made its subclass for the app
    if issubclass(cls, own):
        return
    try:
        cls.__bases__ = (*cls.__bases__, own)
    except TypeError as error:
        logger.warning(
            "Task %s is not of the app's task class %s.%s, which does not go together with RateLimitedTask (%s): "
            "make one, class MyTask(celery_ratelimit.RateLimitedMixin, %s), and name that as base",
            *(vars(cls).get("name"), own.__module__, own.__qualname__, error, own.__qualname__),
        )


def _settle(task: Any, actual_cost: int | Mapping[str, int], limit: str | None) -> bool:
    request = task.request
    permit = requests.permit_in(request)
    plan = plan_of(task, permit["queue"]) if permit is not None else None
    if permit is None or plan is None or not (permit["granted_at"] or permit.get("shadow")):
        return False
    limiter, every = limiter_of(task.app), demands_in(permit, plan)
    exempt = {each.name for each in plan.limits} - {each.name for each in every}  # of this call: nothing to correct
    if limit in exempt or (isinstance(actual_cost, Mapping) and exempt and exempt.issuperset(actual_cost)):
        return False
    if isinstance(actual_cost, Mapping):
        actual_cost = {name: cost for name, cost in actual_cost.items() if name not in exempt}
    actual = dict(zip(every, actual_costs(every, actual_cost, limit), strict=True))
    check_actual(every, list(actual.values()))
    beside = permit.get("shadow", ())
    demands, shadow = [[each for each in every if (each.name in beside) == is_beside] for is_beside in (False, True)]
    is_first = bool(shadow) and limiter._asker.shadows.is_first(("settled", permit["id"]))
    if is_first:
        limiter._correct(shadow, [actual[each] for each in shadow])
    if not demands or not permit["granted_at"]:
        return is_first
    costs = [actual[each] for each in demands]
    settle = limiter._asker.core.settle(demands, costs, id=permit["id"], granted_at=permit["granted_at"])
    return limiter._asker.drive(settle)
