"""Tasks of the base class in a worker without the gate: they acquire in their own process, by the rules of the gate."""

from __future__ import annotations

import contextlib
import logging
import pickle
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from celery.exceptions import Ignore

from ._celery import PERMIT, ReturnToBacklog, longest_hold, requests
from ._celery.message_fields import priority_of
from ._celery.saved_message import THROTTLES_HEADER, upstream_throttles_in
from .app.app_attributes import kept
from .app.app_store import leases_of, limiter_of
from .app.permits import demands_in, permit_of
from .app.plan import Plan, plan_of
from .app.settings import settings_of
from .app.upstream_errors import report_refusal, return_if_refused
from .errors import STORE_TROUBLES, ImpossibleRequest, RateLimitError, StoreUnavailable
from .limiter.leases import run_id
from .limiter.limit_request import LimitRequest, leased
from .limiter.shadow import asked_of
from .limiter.upstream_methods import Paused
from .observing import Observation
from .store_calls.outage import TaskDeferral
from .worker.announce_outcomes import ThrottleReport
from .worker.next_action import GiveUp, refused
from .worker.stored_rate_labels import stored_in_place_of
from .worker.upstream_returns import put_back

__all__ = ["acquire_in_task", "return_in_task"]

logger: logging.Logger = logging.getLogger("celery_ratelimit")


@dataclass(frozen=True, slots=True)
class _Call:
    """A task that acquires in its own process, as :func:`~celery_ratelimit.worker.next_action.refused` reads it."""

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
    if request.is_eager or request.called_directly or requests.permit_in(request) is not None:
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
    permit = permit_of(plan, queue, run, granted_at, demands, shadow)
    throttles = {"upstream_throttles": upstream_throttles_in(vars(request)), "in_task": True}
    request.properties = {**(request.properties or {}), PERMIT: {"worker": request.hostname, **permit, **throttles}}
    # As they came: its body may change them, and then its upstream refuses its call.
    with contextlib.suppress(Exception):  # they cannot be pickled
        request.ratelimit_arguments = pickle.dumps((request.args, request.kwargs))
    time.sleep(wait)


def return_in_task(task: Any, error: Exception) -> None:
    """End a task's run if its upstream has refused its call, see :func:`return_if_refused`; the gate puts it back.

    Raises:
        Ignore: without the gate the task is sent again, to return after the pause.
    """
    try:
        return_if_refused(task, error)
    except ReturnToBacklog as refusal:
        request = task.request
        permit = requests.permit_in(request) or {}
        plan = plan_of(task, permit.get("queue", ""))
        if plan is None or "in_task" not in permit:
            raise
        with contextlib.suppress(*STORE_TROUBLES):  # the lease keeper tries again
            leases_of(task.app).end(permit["id"])
        call = _Call(plan, permit["queue"], demands_in(permit, plan), time.monotonic())
        demand, paused = call.demand(refusal.limit), Paused(max(1.0, refusal.retry_after or 0.0), None)
        with contextlib.suppress(*STORE_TROUBLES):
            paused = report_refusal(limiter_of(task.app)._asker, demand, refusal, task.name, request.id, plan.node)
        vars(request)[THROTTLES_HEADER] = permit["upstream_throttles"] + 1
        action = put_back(call, demand, paused, call.arrived_at, since=0, parks=False)
        _refuse(task, call, demand, paused.seconds, action)


def _refuse(task: Any, call: _Call, demand: LimitRequest, wait: float, action: Any) -> NoReturn:
    """Handle a refused task: it fails, is dropped, goes to another queue, or returns after ``wait`` seconds."""
    stored = ""
    with contextlib.suppress(*STORE_TROUBLES):  # for the log alone
        config = limiter_of(task.app).config(demand.name, key=demand.key or None, force=True)
        stored = stored_in_place_of(demand.limit, config)
    report = ThrottleReport("returned", wait, demand, stored=stored)
    if isinstance(action, GiveUp):
        report = replace(report, queue_full=action.queue_full).given_up(action.how, call.plan.policy)
    else:
        report = replace(report, retry_after=min(wait, _longest_countdown(task.app)))
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
        saved = getattr(request, "ratelimit_arguments", None)
        args, kwargs = (request.args, request.kwargs) if saved is None else pickle.loads(saved)
        task.signature_from_request(
            *(request, args, kwargs),
            retries=request.retries,
            argsrepr=getattr(request, "argsrepr", None),
            kwargsrepr=getattr(request, "kwargsrepr", None),
            add_to_parent=False,
            **_headers(request),
            **({"countdown": report.retry_after} if report.to is None else {"queue": report.to}),
        ).apply_async()
    raise Ignore


def _longest_countdown(app: Any) -> float:
    """Seconds: on a longer countdown the broker would deliver the message a second time."""
    longest: float = kept(app, "longest countdown", lambda: longest_hold(app))
    return longest


def _headers(request: Any) -> dict[str, Any]:
    """The option of a task that is sent again with which it keeps the number of its upstream's refusals."""
    throttles = upstream_throttles_in(vars(request))
    return {"headers": {**(request.headers or {}), THROTTLES_HEADER: throttles}} if throttles else {}


def _count(task: Any, queue: str, outcome: str, demands: Sequence[LimitRequest], limit: str | None = None) -> None:
    """Count a task's outcome, as a gate does. Whether the task was throttled before is not known here."""
    limiter = limiter_of(task.app)
    if limiter._counting is not None and not limiter._asker.is_fake:
        seen = Observation(outcome, task.name, task.request.id, queue, limit, asked=asked_of(demands))
        limiter._counting.counter(seen)
