"""Reports the outcome of a request to the log, monitors, signals, observers, and the process that runs its task.

Throttling is normal: an INFO line, an event and a signal, once for each outcome of a delivery.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from time import monotonic
from typing import Any

from .._celery import requests
from .._celery.saved_message import marker_in
from ..app.options import Policy
from ..app.permits import permit_of
from ..errors import Throttled
from ..limiter.limit_request import LimitRequest
from ..limiter.shadow import asked_of
from ..limits.rate_limit import Limit
from ..observing import Observation, Observer
from ..signals import task_throttled
from ..words import NO_END
from .request import PendingRequest, UnlimitedRequest
from .request_queue import LimitQueue

__all__ = ["Reporter", "ThrottleReport", "outcome_of"]

logger: logging.Logger = logging.getLogger("celery_ratelimit")


def outcome_of(
    limit_queue: LimitQueue,
    pending: PendingRequest,
    demand: LimitRequest,
    wait: float,
    now: float,
    queue_full: bool = False,
    what: str = "waiting",
) -> ThrottleReport:
    """The report of a request that waits for its slot."""
    interval = limit_queue.intervals.get(demand.name, 0.0)
    return ThrottleReport(what, wait, demand, interval, waited=now - pending.arrived_at, queue_full=queue_full)


class Reporter:
    """Reports the outcomes of requests.

    Args:
        observers: get each outcome, also starts.
        stored: the labels of stored rates, by limit request and interval of the decision.
        counter: gets each outcome, without the reason.
    """

    def __init__(
        self,
        observers: Sequence[Observer] = (),
        stored: Callable[[LimitRequest, float], str] = lambda *_: "",
        counter: Observer | None = None,
    ) -> None:
        self._observers, self._stored = list(observers), stored
        self._all = [*self._observers, *([counter] if counter is not None else ())]
        self._failed: set[int] = set()

    def announce(self, pending: PendingRequest, outcome: ThrottleReport) -> None:
        """Report a request that does not start: it waits, or ends."""
        if pending.announced == outcome.what:
            return
        pending.announced, pending.throttled_by = outcome.what, outcome.limit or ""
        labelled = cache(partial(self._with_stored_rate, outcome))  # the store is read only if the label is used
        level = logging.INFO if outcome.demand is not None else logging.DEBUG
        logs = logger.isEnabledFor(level)
        seen = _throttled(pending, labelled() if logs or self._observers else outcome)
        if logs:  # an outage is logged when it begins and ends, so a single task is at DEBUG
            fields = {**labelled().fields(), "task": seen.task, "id": seen.id, "queue": seen.queue, "cost": seen.cost}
            fields["throttled_for"] = seen.throttled_for
            logger.log(level, "Task %s[%s] %s", seen.task, seen.id, seen.said, extra={"data": fields})
        requests.send_throttled_event(pending.request, lambda: labelled().fields())
        if task_throttled.receivers:
            task_throttled.send(sender=pending.request.task, request=pending.request, **labelled().fields())
        self._tell(seen)

    def _with_stored_rate(self, outcome: ThrottleReport) -> ThrottleReport:
        stored = self._stored(outcome.demand, outcome.interval) if outcome.demand is not None else ""
        return replace(outcome, stored=stored) if stored else outcome

    def started(self, pending: PendingRequest, permit_at_us: int) -> dict[str, Any]:
        """Report a start; ``permit_at_us``: the permit is good since then; 0: the task starts without the store.

        Returns:
            Data for the process that runs the task: its permit, the limit that throttled it, and for how long.
        """
        if self._all:
            self._tell(_started(pending, permit_at_us))
        permit = permit_of(pending.plan, pending.queue, pending.run_id, permit_at_us, pending.demands, pending.shadow)
        if _was_throttled(pending):
            permit["throttled_for"] = _throttled_for(pending, permit_at_us)
            permit["throttled_by"] = _throttled_by(pending)
        return permit

    def passed(self, waiting: UnlimitedRequest, shadow: Sequence[LimitRequest]) -> None:
        """Report the start of a request whose limits are all in shadow."""
        if self._all:
            request, first = waiting.request, shadow[0]
            names = request.name, request.id, waiting.queue, first.name, first.key, first.cost
            self._tell(Observation("shadow", *names, shadow=asked_of(shadow)))

    def failed(self, pending: PendingRequest, error: Exception, *, without_store: bool) -> None:
        """Report a failed request: the store did not answer, or the request is impossible."""
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


def _throttled(pending: PendingRequest, outcome: ThrottleReport) -> Observation:
    demand = outcome.demand
    what, cost = (outcome.what, demand.cost) if demand is not None else ("store_error", 1)
    words: dict[str, Any] = {"rate": outcome.rate, "reason": outcome.reason, "said": str(outcome)}
    return _observed(pending, what, outcome.limit, outcome.key, cost, retry_after=outcome.retry_after, **words)


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
    names = pending.request.name, pending.request.id, pending.queue, limit, key, cost
    return Observation(outcome, *names, throttled_for=waited, asked=asked_of(pending.demands), **fields)


def _was_throttled(pending: PendingRequest) -> bool:
    return bool(pending.returned or pending.announced)


def _throttled_by(pending: PendingRequest) -> str:
    """The limit that refused last; ``""``: one of several, since a task on a countdown does not record which."""
    if pending.throttled_by:
        return pending.throttled_by
    lot = marker_in(pending.request.message).get("lot")
    if lot:
        return str(lot[0])
    return pending.demands[0].name if len(pending.demands) == 1 else ""


def _throttled_for(pending: PendingRequest, permit_at_us: int) -> float:
    """Seconds since the task was throttled: of a parked task by the store's clock, else since its arrival here."""
    if pending.returned and permit_at_us:
        since = marker_in(pending.request.message).get("since", 0)
        if since > 0:
            return float(max(0, permit_at_us - since)) / 1e6
    return max(0.0, monotonic() - pending.arrived_at)


#: The outcomes of a throttled task as logged.
_SAID = {
    "waiting": "waits in this worker",
    "parked": "parked",
    "returned": "sent back",
    "dropped": "dropped",
    "failed": "failed",
}


@dataclass(frozen=True, slots=True)
class ThrottleReport:
    """The outcome of a throttled task, and its reason, for the log, the event, the signal and the task's result.

    Attributes:
        what: ``"waiting"`` (in the worker), ``"parked"`` (in the store), ``"returned"`` (to the broker, on a
            countdown), ``"dropped"``, ``"failed"``, or ``"diverted"`` (to another queue).
        retry_after: seconds until the slot that the task has, or would have had.
        demand: the request to the limit that refused; ``None``: the store does not answer.
        interval: seconds in which a permit of that limit comes back at the rate in force; 0.0: as in the code.
        stored: the rate stored in the place of the code's, and by which person: ``20/s set by anna``; empty: none.
        max_wait: seconds; the slot is further away than this; ``None``: another reason.
        waited: seconds that the task has waited already.
        queue_full: the queue is full, or the limit has no room for another parked task.
        to: the queue that the task is diverted to.
    """

    what: str
    retry_after: float
    demand: LimitRequest | None = None
    interval: float = 0.0
    stored: str = ""
    max_wait: float | None = None
    waited: float = 0.0
    queue_full: bool = False
    to: str | None = None

    def given_up(self, how: str, policy: Policy) -> ThrottleReport:
        """The report of a task that is given up: ``"drop"``, ``"fail"``, or the queue that it is sent to."""
        what, to = {"drop": ("dropped", None), "fail": ("failed", None)}.get(how, ("diverted", how))
        max_wait = policy.max_wait if policy.waits and not self.queue_full else self.max_wait
        return replace(self, what=what, to=to, max_wait=max_wait)

    @property
    def limit(self) -> str | None:
        """The name of the limit that refused."""
        return self.demand.name if self.demand is not None else None

    @property
    def key(self) -> str:
        """The bucket's key; ``""``: the limit has a single bucket."""
        return self.demand.key if self.demand is not None else ""

    @property
    def rate(self) -> str:
        """The limit as in the code (``"100/s"``, ``"4 at once"``), and what is stored in its place."""
        if self.demand is None:
            return ""
        limit = self.demand.limit
        code = limit.rate if isinstance(limit, Limit) else f"{limit.size} at once"
        if self.stored:
            return f"{code} in code, {self.stored}"
        of_rate = isinstance(limit, Limit) and self.interval > 0
        differs = of_rate and abs(self.interval - limit.interval) > 1e-6 * limit.interval
        return f"{code} in code, {1 / self.interval:.6g}/s now" if differs else code

    @property
    def reason(self) -> str:
        """Which limit refused, and until when, in words."""
        if self.demand is None:
            return "the limiter's store does not answer"
        return str(self.error)

    @property
    def error(self) -> Throttled:
        """The error of a task that is given up."""
        assert self.demand is not None
        max_parked = self.demand.limit.max_parked if self.queue_full else None
        return Throttled(self.demand.name, self.retry_after, self.max_wait, self.key, max_parked)

    def __str__(self) -> str:
        if self.demand is None:
            return (
                f"throttled while the limiter's store does not answer: {_SAID[self.what]} for {self.retry_after:.3f} s"
            )
        key = f", key {self.key!r}" if self.key else ""
        what = f"sent on to queue {self.to!r}" if self.what == "diverted" else _SAID[self.what]
        return f"throttled by limit {self.limit!r} ({self.rate}{key}): {what}, {self._when()}"

    def _when(self) -> str:
        seconds = f"{self.retry_after:.3f} s"
        if self.queue_full and (most := self.error.max_parked) is not None:
            return f"as {most} tasks wait already (max_parked), and its turn would be in {seconds}"
        if self.queue_full:
            return f"as there is no room to wait, but in {seconds}"
        if self.max_wait is not None:
            after = f" after {self.waited:.3f} s of waiting" if self.waited >= 0.01 else ""
            return f"as its turn would be in {seconds}{after}, beyond max_wait={self.max_wait:g} s"
        if self.what in ("dropped", "failed"):
            return f"a permit is free in {seconds}"
        return "its turn comes when the limit is resumed" if self.retry_after > NO_END else f"its turn is in {seconds}"

    def fields(self) -> dict[str, Any]:
        """The fields of the event and the signal."""
        return {
            "retry_after": self.retry_after,
            "limit": self.limit,
            "outcome": self.what,
            "rate": self.rate,
            "key": self.key,
            "reason": self.reason,
        }
