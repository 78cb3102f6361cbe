"""The task class whose limits hold for the whole fleet."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NoReturn

from celery import Celery, Task
from celery.exceptions import Ignore
from celery.utils.nodenames import gethostname

from ._celery import PERMIT, requests
from ._celery.message_fields import priority_of
from .app.kept import kept
from .app.plan import Plan, plan_of
from .app.settings import settings_of
from .app.state import leases_of, limiter_of
from .errors import STORE_TROUBLES, ImpossibleRequest, RateLimitError, StoreUnavailable
from .limiter.argument_checks import actual_costs, check_actual
from .limiter.leases import run_id
from .limiter.limit_request import LimitRequest, leased
from .limiter.shadow import asked_of
from .observing import Observation
from .store_calls.outage import TaskDeferral
from .worker.bootstep import install
from .worker.reporting import ThrottleReport, permit_of
from .worker.rules import GiveUp, refused
from .worker.stored_limit_labels import stored_in_place_of

__all__ = ["RateLimitedMixin", "RateLimitedTask"]

logger = logging.getLogger("celery_ratelimit")


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
        permit = _permit(self.request)  # type: ignore[attr-defined]
        if permit is not None:
            with contextlib.suppress(*STORE_TROUBLES):  # the lease keeper tries again
                leases_of(self.app).end(permit["id"])  # type: ignore[attr-defined]
        super().after_return(status, retval, task_id, args, kwargs, einfo)  # type: ignore[misc]

    def settle(self, actual_cost: int | Mapping[str, int], *, limit: str | None = None) -> bool:
        """Correct the cost of this call of the task, once it is known; from within the task.

        As :meth:`Limiter.settle <celery_ratelimit.Limiter.settle>`. Returns False if nothing was charged: in a direct
        call, in eager mode, or while the store was lost.
        """
        return _settle(self, actual_cost, limit)


class RateLimitedTask(RateLimitedMixin, Task):
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


@dataclass(frozen=True, slots=True)
class _Call:
    """A task that acquires in its own process, as :func:`~celery_ratelimit.worker.rules.refused` reads it."""

    plan: Plan
    queue: str
    demands: Sequence[LimitRequest]
    arrived_at: float
    has_reservation: bool = False

    def demand(self, name: str | None) -> LimitRequest:
        return next((demand for demand in self.demands if demand.name == name), self.demands[0])


def acquire_in_task(task: Any, task_id: str, args: Any, kwargs: Any) -> None:
    """Acquire the permits of a running task, unless its worker has. A refused task does not go on.

    Raises:
        Throttled: the task fails.
        StoreUnavailable, StoreMisconfigured: the same, with ``ratelimit_on_store_error="raise"``.
        Ignore: the task was dropped, or sent again.
    """
    request = task.request
    delivery = request.delivery_info or {}
    if request.is_eager or request.called_directly or _permit(request) is not None:
        return
    queue = delivery.get("routing_key") or ""
    plan = plan_of(task, queue)
    if plan is None:
        return
    # A task that replaces this one (self.replace()) has the same id, and is received while this one runs.
    own_id = f"{task_id}~{nesting}" if (nesting := request.replaced_task_nesting) else task_id
    every = plan.demands(args, kwargs, priority_of(delivery.get("priority")))
    try:
        limiter, leases, run = limiter_of(task.app), leases_of(task.app), run_id(task_id)
    except StoreUnavailable as error:  # a cluster's client connects at once
        _without_store(task, error)
        return
    demands, shadow = limiter._asker.shadows.split(every)
    wait, granted_at = 0.0, 0
    if demands:
        policy, now, lease_id = plan.policy, time.monotonic(), run if leased(demands) else ""
        how = {"horizon": policy.inline_wait, "claim": policy.claim, "lease_id": lease_id}
        try:
            decision = limiter._asker.ask(demands, id=own_id, **how)
        except STORE_TROUBLES as error:
            leases.end(run, later=True, unconfirmed=demands)  # the reply may have been lost
            _count(task, queue, "store_error", demands)
            _without_store(task, error)
        except ImpossibleRequest:
            _count(task, queue, "failed", demands, demands[0].name)
            raise
        else:
            if not decision.allowed:
                call = _Call(plan, queue, demands, now)
                action = refused(call, decision, now, for_permit=True, max_hold=0.0, parks=False, early=0.0)
                _refuse(task, call, call.demand(decision.limited_by), decision.retry_after, action)
            leases.begin(run, decision._demands, decision._granted_at)
            _count(task, queue, "acquired", demands, demands[0].name)
            wait, granted_at = decision.retry_after, decision._granted_at
    if shadow:
        limiter._pass_by(shadow, (f"t{task.name}", f"q{queue}"))
    permit = permit_of(queue, run, granted_at, shadow)
    request.delivery_info = {**delivery, PERMIT: {"worker": request.hostname, **permit}}
    time.sleep(wait)


def _refuse(task: Any, call: _Call, demand: LimitRequest, wait: float, action: Any) -> NoReturn:
    """Handle a refused task: it fails, is dropped, goes to another queue, or returns after ``wait`` seconds."""
    stored = ""
    with contextlib.suppress(*STORE_TROUBLES):  # for the log alone
        config = limiter_of(task.app).config(demand.name, key=demand.key or None, force=True)
        stored = stored_in_place_of(demand.limit, config)
    report = ThrottleReport("returned", wait, demand, stored=stored)
    if isinstance(action, GiveUp):
        report = replace(report, queue_full=action.queue_full).given_up(action.how, call.plan.policy)
    _count(task, call.queue, report.what, call.demands, demand.name)
    _end_run(task, report)


def _without_store(task: Any, error: RateLimitError) -> None:
    """Handle a task while the store does not answer, by ``ratelimit_on_store_error``: go on, return later, or fail.

    The number of workers that share a limit is not known here, so ``"local"`` is ``"defer"``.
    """
    deferral: TaskDeferral = kept(task.app, "deferral", TaskDeferral)
    deferral.warn(error)
    choice = settings_of(task.app).on_store_error
    if choice == "raise":
        raise error
    if choice != "allow":
        deferral.begin(may_go_on=True)
        _end_run(task, ThrottleReport("returned", deferral.pause()))


def _end_run(task: Any, report: ThrottleReport) -> NoReturn:
    """End this run of a task as the report says."""
    request = task.request
    level = logging.INFO if report.demand is not None else logging.DEBUG  # an outage is logged once a minute
    logger.log(level, "Task %s[%s] %s", task.name, request.id, report)
    if report.what == "failed":
        raise report.error
    if report.what == "dropped":
        requests.throttled_out(task, request, "dropped", report.reason)
    else:
        task.signature_from_request(
            *(request, request.args, request.kwargs),
            retries=request.retries,
            argsrepr=getattr(request, "argsrepr", None),
            kwargsrepr=getattr(request, "kwargsrepr", None),
            add_to_parent=False,
            **({"countdown": report.retry_after} if report.to is None else {"queue": report.to}),
        ).apply_async()
    raise Ignore


def _count(task: Any, queue: str, outcome: str, demands: Sequence[LimitRequest], limit: str | None = None) -> None:
    """Count a task's outcome, as a gate does. Whether the task was throttled before is not known here."""
    limiter = limiter_of(task.app)
    if limiter._counting is not None and not limiter._asker.is_fake:
        seen = Observation(outcome, task.name, task.request.id, queue, limit, asked=asked_of(demands))
        limiter._counting.counter(seen)


def _permit(request: Any) -> Mapping[str, Any] | None:
    """The permit that this worker took for the task; None: it took none."""
    permit = (request.delivery_info or {}).get(PERMIT)
    # Celery's slower tracer, which start_worker() of celery.contrib.testing runs, names the machine and not the worker.
    ours = isinstance(permit, dict) and request.hostname in (permit.get("worker"), gethostname())
    return permit if ours else None


def _settle(task: Any, actual_cost: int | Mapping[str, int], limit: str | None) -> bool:
    request = task.request
    permit = _permit(request)
    plan = plan_of(task, permit["queue"]) if permit is not None else None
    if permit is None or plan is None or not (permit["granted_at"] or permit.get("shadow")):
        return False
    limiter, every = limiter_of(task.app), plan.demands(request.args, request.kwargs)
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
