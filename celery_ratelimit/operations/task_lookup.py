"""Finds one task by id: where the task is, what it waits for, and when it will start."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from celery import Celery

from .._celery import BrokerDidNotAnswer, default_queue_of, message_counts, query_workers
from ..app.app_limits import limits_of_app
from ..app.plan import plan_of
from ..backlog.backlog import Backlog
from ..backlog.messages import Bucket, read_parcel
from ..backlog.scripts import weights_text
from ..backlog.tuning import QUEUE_KNOWN
from ..counts.shadow_report import ShadowReport
from ..limits.stored_settings import LimitConfig
from ..words import end_of, number_of, plain
from .bucket_status import standings_of
from .forecast import Forecast, forecast, no_worker
from .overview import in_shadow, overview
from .read_parking_lots import rank, shares_of

__all__ = ["PATIENCE", "Explanation", "explain"]

#: Seconds that workers have to reply.
PATIENCE = 1.0


@dataclass(frozen=True, slots=True)
class Explanation:
    """The state of one task, and the limit for which it waits.

    Attributes:
        id: the task's id.
        where: ``"parked"``, ``"aside"`` (parked, and no worker consumes its queue), ``"leaving"`` (on its way back to
            its queue), ``"scheduled"`` (in a worker, until its countdown ends), ``"held"`` (in a worker, not started),
            ``"running"``, ``"ended"`` or ``"unknown"``.
        now: time of this observation, in seconds since 1970.
        task: the task's name; ``""``: not known.
        queue: the queue to which the task was sent; ``""``: not known.
        worker: the worker that has the task.
        limit: the limit that has the task in its parking lot; ``""``: none.
        key: of the limit's bucket.
        place: number of tasks parked before it; for a fair limit, about how many tasks have earlier turns.
        parked: number of tasks in that parking lot.
        since: when the task was first throttled, in seconds since 1970; ``None``: never, as far as is known.
        forecast: when it starts; ``None``: it is not parked.
        config: of that limit: its rate, its author, and until when it is in force.
        ended: the task's state in the result backend.
        unasked: why no worker was queried; ``""``: workers were queried, or the query was not needed.
        unconsumed: number of messages in queues that no worker consumes, as far as is known, if the task was not found.
        share: its share of a fair limit; ``None``: the limit is not fair.
        weight: of that share; 0: its tasks are held back.
        shadow_reports: decisions that the task's limits in shadow mode would have made, by the limit's name.
    """

    id: str
    where: str
    now: float
    task: str = ""
    queue: str = ""
    worker: str = ""
    limit: str = ""
    key: str = ""
    place: int = 0
    parked: int = 0
    since: float | None = None
    forecast: Forecast | None = None
    config: LimitConfig | None = None
    ended: str = ""
    unasked: str = ""
    unconsumed: Mapping[str, int] = field(default_factory=dict)
    share: str | None = None
    weight: float | None = None
    shadow_reports: Mapping[str, ShadowReport] = field(default_factory=dict)

    @property
    def found(self) -> bool:
        """Whether the task was found."""
        return self.where != "unknown"

    @property
    def starts_at(self) -> float | None:
        """Forecast of the start, in seconds since 1970; ``None``: not known."""
        seconds = self.forecast.seconds if self.forecast is not None else None
        return None if seconds is None else self.now + seconds

    def __str__(self) -> str:
        name = f"{self.task}[{self.id}]" if self.task else f"Task {self.id}"
        return "\n".join(map(plain, [f"{name} {self._location()}.", *self._details()]))

    def _location(self) -> str:
        of = f"limit {self.limit!r}" + (f", key {self.key!r}" if self.key else "")
        match self.where:
            case "parked":
                about = "about " if self.share is not None else ""
                return f"is parked at {about}place {self.place + 1} of {self.parked} of {of}"
            case "aside":
                return f"is parked for {of}, and set aside: no worker consumes the queue {self.queue!r}"
            case "leaving":
                return f"is on its way back to the queue {self.queue!r}, from the lot of {of}"
            case "held":
                return f"is in worker {self.worker}, and has not started: it waits for its turn, or for a free process"
            case "scheduled":
                return f"is in worker {self.worker}, and waits for its countdown to end"
            case "running":
                return f"runs in worker {self.worker}"
            case "ended":
                return f"has ended: {self.ended}"
        workers = self.unasked or "no worker that has answered has it"
        return (
            f"is not known: it is in no parking lot, {workers}, and the result backend has nothing of it. Is "
            "the id right? It may also wait in a queue of the broker, or have ended without a result"
        )

    def _details(self) -> list[str]:
        lines = []
        if self.since is not None:
            lines.append(f"It was sent to the queue {self.queue!r}, and was throttled first {self._ago(self.since)}.")
        config = self.config
        if config is not None:
            is_set, reason = config.override is not None, f" ({config.reason})" if config.reason else ""
            by = f", set by {config.by} {self._ago(config.since)}{reason}" if is_set else ", as in the code"
            lines.append(f"The limit is {config.in_force or 'not known here'}{by}.")
            if config.paused:
                by = f" by {config.paused_by}" if config.paused_by else ""
                reason = f" ({config.pause_reason})" if config.pause_reason else ""
                until = end_of("resumed", self.now + config.paused, self.now)
                lines.append(f"The limit is paused{by} {until}{reason}.")
        if self.share is not None and self.weight is not None:
            lines.append(f"Its share {self.share!r} has the weight {self.weight:g}.")
        if self.forecast is not None:
            is_known = self.forecast.seconds is not None
            lines.append(f"It will start {self.forecast}." if is_known else f"When it will start is {self.forecast}.")
        for queue, number in self.unconsumed.items():
            lines.append(f"The queue {queue!r} has {number_of(number, 'message')}, and no worker seems to consume it.")
        lines += [f"The limit {name!r} is in shadow: {report}." for name, report in self.shadow_reports.items()]
        return lines

    def _ago(self, at: float) -> str:
        return f"{max(0.0, self.now - at):.1f} s ago"


def explain(app: Celery, backlog: Backlog, id: str) -> Explanation:
    """See :meth:`ParkingLots.explain`."""
    found, unasked, replies = _in_lots(app, backlog, id), "", dict[str, Any]()
    if found is None:
        try:
            replies = query_workers(app, "ratelimit_task", PATIENCE, id=id)
            found = _in_workers(replies, id)
        except BrokerDidNotAnswer as error:
            unasked = f"the broker does not answer, so no worker was asked ({error})"
    if found is None:
        found = _in_backend(app, id)
    if found is None:
        unconsumed = {} if unasked else _unconsumed(app, backlog, bool(replies))
        return Explanation(id, "unknown", time.time(), unasked=unasked, unconsumed=unconsumed)
    task = app.tasks.get(found.task)
    plan = plan_of(task, found.queue) if task is not None else None
    limits = {str(limit.name): limit for limit in plan.limits} if plan is not None else {}
    if found.config is not None and found.config.in_force is not None:
        limits.setdefault(found.limit, found.config.in_force)
    return replace(found, shadow_reports=in_shadow(app, standings_of(app, limits))[1] if limits else {})


def _in_lots(app: Celery, backlog: Backlog, id: str) -> Explanation | None:
    if not backlog.can_park or not id or "\0" in id:
        return None
    names = sorted({*limits_of_app(app), *backlog.register.seen().limits})
    indexed = (
        (bucket, stored_id)
        for places in backlog.contents.find(names, [id])
        for bucket, ids in places.items()
        for stored_id in ids
    )
    for bucket, stored_id in chain(indexed, backlog.contents.find_leaving(names, id)):
        found = _in_lot(app, backlog, id, bucket, stored_id)
        if found is not None:
            return found
    return None


def _in_lot(app: Celery, backlog: Backlog, id: str, bucket: Bucket, stored_id: str) -> Explanation | None:
    limits = limits_of_app(app)
    limit = limits.get(bucket[0])
    found = backlog.contents.position(bucket, stored_id, weights_text(limit) if limit is not None else "")
    parcel = read_parcel(found.parked)
    if not found.where or not parcel or found.parked.task != id:
        return None
    queue, share, name = found.parked.queue, found.parked.share, bucket[0]
    (status,), (standing,) = overview(app, name, force=True, ask_broker=False), standings_of(app, limits, [bucket])
    stopped = backlog.register.seen(after=-QUEUE_KNOWN).queues
    held_up = no_worker([queue], stopped) or ("" if status.attended else status.held_up)
    if found.weight == 0 and not held_up:
        held_up = f"share {share!r} has weight 0: its tasks are held back"
    is_parked, lots = found.where == "parked", [lot for lot in status.parking_lots or () if lot.key == bucket[1]]
    shares = [each for lot in lots if found.weight and is_parked for each in shares_of(app, limit, lot)]
    place = rank(shares, share, found.in_share) if shares else max(0, found.before)
    ahead = place * found.cost / found.number if is_parked else 0.0
    return Explanation(
        id,
        found.where,
        found.now / 1e6,
        task=str(parcel["headers"].get("task", "")),
        queue=queue,
        limit=name,
        key=bucket[1],
        place=place,
        parked=found.number,
        since=found.parked.since / 1e6,
        forecast=forecast(ahead, standing, status.throughput, held_up),
        config=standing.config,
        share=share if found.weight is not None else None,
        weight=found.weight,
    )


def _in_workers(replies: Mapping[str, Any], id: str) -> Explanation | None:
    for worker, reply in replies.items():
        if isinstance(reply, dict) and "where" in reply:  # a worker without this package replies with an error
            return Explanation(id, reply["where"], time.time(), reply["task"], reply["queue"], worker)
    return None


def _unconsumed(app: Celery, backlog: Backlog, is_answered: bool) -> dict[str, int]:
    """Messages in queues of the app's tasks that no worker consumes. Queues without messages are left out.

    A worker without limits does not report its queues: a queue without a report counts if no worker answers at all.
    """
    stopped = backlog.register.seen(after=-QUEUE_KNOWN).queues if backlog.can_park else {}
    queues = {queue for task in app.tasks if (queue := default_queue_of(app, task))}
    idle = [queue for queue in sorted(queues) if stopped.get(queue, -1.0 if is_answered else 0.0) >= 0]
    return {queue: number for queue, number in message_counts(app, idle).items() if number}


def _in_backend(app: Celery, id: str) -> Explanation | None:
    if not id:  # backends raise at it, some of them late
        return None
    try:
        state = str(app.AsyncResult(id).state)
    except Exception:  # the backend does not reply, or is a user's own
        return None
    return None if state == "PENDING" else Explanation(id, "ended", time.time(), ended=state)
