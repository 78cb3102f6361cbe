"""The one place that tells what has become of a request: to the log, to monitors, to signals, to observers, and to the
process that runs its task.

Throttling is normal: an INFO line, an event and a signal, once for each outcome of a delivery.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

from .._celery import requests
from .._celery.saved_message import marker_in
from ..limiter.demand import Demand
from ..limiter.shadows import asked_of
from ..observing import Observation, Observer
from ..signals import task_throttled
from .clock import monotonic
from .request import PendingRequest, Unlimited
from .request_queue import LimitQueue
from .throttle_report import ThrottleReport

__all__ = ["Reporter", "outcome_of", "permit_of"]

logger = logging.getLogger("celery_ratelimit")


def outcome_of(
    limit_queue: LimitQueue,
    pending: PendingRequest,
    demand: Demand,
    wait: float,
    now: float,
    full: bool = False,
    what: str = "waiting",
) -> ThrottleReport:
    """Why a request does not start, as far as it waits for its turn."""
    interval = limit_queue.intervals.get(demand.name, 0.0)
    return ThrottleReport(what, wait, demand, interval, waited=now - pending.arrived_at, full=full)


def permit_of(queue: str, id: str, granted_at: int, shadow: tuple[Demand, ...]) -> dict[str, Any]:
    """What a task knows of its permit, with which it settles."""
    permit: dict[str, Any] = {"queue": queue, "id": id, "granted_at": granted_at}
    return {**permit, "shadow": [demand.name for demand in shadow]} if shadow else permit


class Reporter:
    """Tells what has become of requests. What is not heard is not put into words.

    Args:
        observers: are told of each outcome, also of starts.
        stored: which rate people have put in the place of a limit's in the code, as a decision was told an interval.
        counter: is told of the same, without a word of why.
    """

    def __init__(
        self,
        observers: Sequence[Observer] = (),
        stored: Callable[[Demand, float], str] = lambda *_: "",
        counter: Observer | None = None,
    ) -> None:
        self._observers, self._stored = list(observers), stored
        self._all = [*self._observers, *([counter] if counter is not None else ())]
        self._failed: set[int] = set()

    def announce(self, pending: PendingRequest, outcome: ThrottleReport) -> None:
        """A request does not start: it waits somewhere, or ends."""
        if pending.announced == outcome.what:
            return
        pending.announced, pending.throttled_by = outcome.what, outcome.limit or ""
        labelled = cache(
            partial(self._with_stored_rate, outcome)
        )  # read from the store only if something is told of it
        level = logging.INFO if outcome.demand is not None else logging.DEBUG
        logs = logger.isEnabledFor(level)
        seen = _throttled(pending, labelled()) if logs or self._observers else _counted(pending, outcome)
        if logs:
            _log(level, seen, labelled())
        requests.send_throttled_event(pending.request, lambda: labelled().fields())
        if task_throttled.receivers:
            task_throttled.send(sender=pending.request.task, request=pending.request, **labelled().fields())
        self._tell(seen)

    def _with_stored_rate(self, outcome: ThrottleReport) -> ThrottleReport:
        stored = self._stored(outcome.demand, outcome.interval) if outcome.demand is not None else ""
        return replace(outcome, stored=stored) if stored else outcome

    def started(self, pending: PendingRequest, permit_at_us: int) -> dict[str, Any]:
        """A request starts; ``permit_at_us``: with a permit that is good since then, or (0) without the store.

        Returns:
            What the process that runs the task is told of its permit, and of how long it was throttled by which limit.
        """
        if self._all:
            self._tell(_started(pending, permit_at_us))
        permit = permit_of(pending.queue, pending.run_id, permit_at_us, pending.shadow)
        if _was_throttled(pending):
            permit["throttled_for"] = _throttled_for(pending, permit_at_us)
            permit["throttled_by"] = _throttled_by(pending)
        return permit

    def passed(self, waiting: Unlimited, shadow: Sequence[Demand]) -> None:
        """A request starts all of whose limits are in shadow."""
        if self._all:
            request, first = waiting.request, shadow[0]
            names = request.name, request.id, waiting.queue, first.name, first.key, first.cost
            self._tell(Observation("shadow", *names, shadow=asked_of(shadow)))

    def failed(self, pending: PendingRequest, error: Exception, *, without_store: bool) -> None:
        """A request fails, as the store did not answer, or as no waiting would grant what it asks."""
        if self._all:
            outcome = "store_error" if without_store else "failed"
            limit = None if without_store else pending.demands[0].name
            self._tell(_observed(pending, outcome, limit, reason=str(error)))

    def _tell(self, seen: Observation) -> None:
        for observer in self._all:
            try:
                observer(seen)
            except Exception as error:
                if id(observer) not in self._failed:
                    self._failed.add(id(observer))
                    logger.error("The observer %r raised %r, which is said once", observer, error, exc_info=True)


def _log(level: int, seen: Observation, outcome: ThrottleReport) -> None:
    """While the store does not answer, which is said when it begins and ends, the line is at DEBUG."""
    fields = {**outcome.fields(), "task": seen.task, "id": seen.id, "queue": seen.queue, "cost": seen.cost}
    fields["throttled_for"] = seen.throttled_for
    logger.log(level, "Task %s[%s] %s", seen.task, seen.id, seen.said, extra={"data": fields})


def _counted(pending: PendingRequest, outcome: ThrottleReport) -> Observation:
    return _observed(pending, outcome.what if outcome.demand is not None else "store_error", outcome.limit, outcome.key)


def _throttled(pending: PendingRequest, outcome: ThrottleReport) -> Observation:
    demand = outcome.demand
    return _observed(
        pending,
        outcome.what if demand is not None else "store_error",
        outcome.limit,
        outcome.key,
        demand.cost if demand is not None else 1,
        retry_after=outcome.retry_after,
        rate=outcome.rate,
        reason=outcome.reason,
        said=str(outcome),
    )


def _started(pending: PendingRequest, permit_at_us: int) -> Observation:
    shadow = asked_of(pending.shadow)
    if not permit_at_us:
        why = "it starts while the limiter's store does not answer"
        return _observed(pending, "store_error", None, reason=why, shadow=shadow)
    first = pending.demands[0]
    outcome = "waited" if _was_throttled(pending) else "acquired"
    waited = _throttled_for(pending, permit_at_us)
    return _observed(pending, outcome, first.name, first.key, first.cost, throttled_for=waited, shadow=shadow)


def _observed(
    pending: PendingRequest,
    outcome: str,
    limit: str | None,
    key: str = "",
    cost: int = 1,
    *,
    throttled_for: float | None = None,
    **fields: Any,
) -> Observation:
    waited = _throttled_for(pending, 0) if throttled_for is None else throttled_for
    request = pending.request
    return Observation(
        outcome,
        request.name,
        request.id,
        pending.queue,
        limit,
        key,
        cost,
        throttled_for=waited,
        asked=asked_of(pending.demands),
        **fields,
    )


def _was_throttled(pending: PendingRequest) -> bool:
    return bool(pending.returned or pending.announced)


def _throttled_by(pending: PendingRequest) -> str:
    """The limit that has said no last; ``""``: one of several. What comes back from a countdown does not say which."""
    if pending.throttled_by:
        return pending.throttled_by
    lot = marker_in(pending.request.message).get("lot")
    if lot:
        return str(lot[0])
    return pending.demands[0].name if len(pending.demands) == 1 else ""


def _throttled_for(pending: PendingRequest, permit_at_us: int) -> float:
    """Seconds: of a task that was parked by the store's clock, else since it has come here."""
    if pending.returned and permit_at_us:
        since = marker_in(pending.request.message).get("since", 0)
        if since > 0:
            return float(max(0, permit_at_us - since)) / 1e6
    return max(0.0, monotonic() - pending.arrived_at)
