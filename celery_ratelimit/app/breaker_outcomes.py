"""Reports how tasks under limits with a breaker end, from the process that runs them."""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from celery.exceptions import Ignore, Reject, Retry
from celery.utils.saferepr import saferepr

from .._celery import requests
from ..errors import STORE_TROUBLES
from ..limiter.limit_request import LimitRequest, of_cost
from ..limiter.report_counts import count_upstream
from ..limiter.setting_operations import LONGEST, note_of
from ..limits.breaker import Breaker
from .app_attributes import kept
from .app_store import limiter_of
from .permits import demands_in
from .plan import plan_of

__all__ = ["report_outcome"]

logger: logging.Logger = logging.getLogger("celery_ratelimit")

#: Replies of the script, see ``StoredSettings.report_outcomes``.
_OPENED, _CLOSED = 2, 3
#: Seconds: a process reports successes of a limit no more often, unless its last task failed.
_EVERY = 1.0
#: Buckets whose outcomes a process keeps. Beyond that it forgets all: the next success of each is reported at once.
_MOST_KEPT = 10_000


@dataclass
class _Outcomes:
    """Of a bucket, in this process: successes since its last report, when that was, and whether it was a failure."""

    succeeded: int = 0
    reported_at: float = float("-inf")
    failed: bool = False


def report_outcome(task: Any, error: Exception | None) -> None:
    """Tell the breakers of a task's limits that its body has ended; ``error``: how, ``None``: it has returned.

    A store that does not answer is not told. No error changes how the task ends.
    """
    try:
        _report(task, error)
    except Exception as trouble:
        logger.warning("The end of task %s is not told to its breakers: %r", task.name, trouble, exc_info=trouble)


def _report(task: Any, error: Exception | None) -> None:
    request = task.request
    permit = None if request.called_directly or request.is_eager else requests.permit_in(request)
    plan = None if permit is None else plan_of(task, permit["queue"])
    if permit is None or plan is None or not plan.has_breaker:
        return
    known: dict[tuple[str, str], _Outcomes] = kept(task.app, "outcomes", dict)
    for demand in demands_in(permit, plan):
        breaker = getattr(demand.limit, "breaker", None)
        if breaker is None or demand.name in permit.get("shadow", ()):
            continue
        if len(known) >= _MOST_KEPT:
            known.clear()
        outcomes = known.setdefault((demand.name, demand.key), _Outcomes())
        failed = error is not None and _has_failed(breaker, error)
        if error is not None and not failed:
            continue
        now = time.monotonic()
        outcomes.succeeded += not failed
        # A try comes no sooner than that after an earlier success, so its own success is always told.
        if failed or outcomes.failed or now - outcomes.reported_at >= min(_EVERY, breaker.half_open_every):
            succeeded, outcomes.succeeded = outcomes.succeeded, 0
            outcomes.failed, outcomes.reported_at = failed, now
            failure = f"upstream fails: {saferepr(error)}"
            reason = f"its last task has succeeded: {task.name}" if error is None else failure
            note = note_of("breaker", "".join(each for each in reason if each.isprintable())[:LONGEST])
            asker, granted_at = limiter_of(task.app)._asker, permit["granted_at"]
            report = asker.core.settings.report_outcomes(demand, breaker, succeeded, failed, granted_at, note)
            with suppress(*STORE_TROUBLES):
                now_is, was_open = asker.drive(report)
                if now_is == _OPENED:
                    asker.drive(count_upstream(asker.core, demand.name, "breaker_opened"))
                elif now_is == _CLOSED:
                    asker.drive(asker.core.charge(of_cost((demand,), _cost_of_tries(demand, breaker, was_open))))


def _cost_of_tries(demand: LimitRequest, breaker: Breaker, was_open: float) -> int:
    """What the tries of a breaker that has closed count in the limit's own bucket, which was put aside meanwhile.

    No more than in the time in which the whole bucket comes back.
    """
    count, period, size = map(int, demand.limit.wire(1)[1:4])
    refills = size * period / count / 1e6
    return demand.cost * (1 + int(min(was_open, refills) / breaker.half_open_every))


def _has_failed(breaker: Breaker, error: Exception) -> bool:
    """Whether a task that ends with this error has failed. ``Retry`` counts as the error that it is for."""
    if isinstance(error, Retry):
        return isinstance(error.exc, breaker.errors)
    return isinstance(error, breaker.errors) and not isinstance(error, (Ignore, Reject))
