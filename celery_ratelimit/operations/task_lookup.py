"""Where one task is, what it waits for, and when it will start: for whoever was asked why nothing happens."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from celery import Celery
from kombu.utils.json import loads

from .._celery import BrokerDidNotAnswer, query_workers
from ..app.plan import limits_of_app, plan_of
from ..backlog.backlog import Backlog
from ..backlog.messages import Bucket, text
from ..backlog.weights import weights_text
from ..counts.would import Would
from ..limiter.stored import LimitConfig
from .limit_status import in_shadow, standings_of

__all__ = ["Explanation", "explain"]

#: Seconds that workers have to answer.
PATIENCE = 1.0
#: What a forecast may be off by: a share of the wait, and seconds.
BAND, LEAST_BAND = 0.1, 1.0


@dataclass(frozen=True, slots=True)
class Explanation:
    """Where a task is, and what it waits for.

    Attributes:
        id: the task's id.
        where: ``"parked"``, ``"aside"`` (parked, and no worker consumes its queue), ``"leaving"`` (on its way back to
            its queue), ``"scheduled"`` (in a worker, until its countdown ends), ``"held"`` (in a worker, and it has
            not started), ``"running"``, ``"ended"`` or ``"unknown"``.
        now: when this was so, in seconds since 1970.
        task: its name; ``""``: that is not known here.
        queue: where it was sent to; the same.
        worker: that has it.
        limit: the limit in whose lot it is; ``""``: none.
        key: of the limit's bucket.
        place: how many tasks are parked before it; where the limit is fair, about how many have their turns before it.
        parked: how many are parked in that lot.
        since: when it was throttled first, in seconds since 1970; ``None``: it was not, as far as is known.
        starts_at: when it will start, about; ``None``: that is not known.
        band: seconds that it may be off by.
        config: of that limit: who set it, and until when.
        ended: what the result backend says of it, a state of Celery's.
        unasked: why workers were not asked; ``""``: they were, or need not be.
        share: whose it is, of those who share the limit, as the store has it; ``None``: nobody shares it.
        weight: of that share; 0: it is held back, and has no turn.
        would: what limits of the task would have done that are in shadow, by their names.
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
    starts_at: float | None = None
    band: float = 0.0
    config: LimitConfig | None = None
    ended: str = ""
    unasked: str = ""
    share: str | None = None
    weight: float | None = None
    would: Mapping[str, Would] = field(default_factory=dict)

    @property
    def found(self) -> bool:
        """Whether anybody knows of the task."""
        return self.where != "unknown"

    def __str__(self) -> str:
        name = f"{self.task}[{self.id}]" if self.task else f"Task {self.id}"
        return "\n".join([f"{name} {self._place_in_words()}.", *self._lines()])

    def _place_in_words(self) -> str:
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

    def _lines(self) -> list[str]:
        lines = []
        if self.since is not None:
            lines.append(f"It was sent to the queue {self.queue!r}, and was throttled first {self._ago(self.since)}.")
        config = self.config
        if config is not None:
            by = f", set by {config.by} {self._ago(config.since)}" if config.stored is not None else ", as in the code"
            reason = f" ({config.reason})" if config.reason else ""
            lines.append(f"The limit is {config.in_force or 'not known here'}{by}{reason}.")
            if config.paused:
                lines.append(f"The limit is paused for another {config.paused:.0f} s.")
        if self.share is not None and self.weight is not None:
            held = ", which holds its tasks back until it has another one" if self.weight == 0 else ""
            lines.append(f"Its share {self.share!r} has the weight {self.weight:g}{held}.")
        if self.starts_at is not None:
            wait = max(0.0, self.starts_at - self.now)
            lines.append(f"It will start in {wait:.1f} s, give or take {self.band:.1f} s, if the rate is not changed.")
        lines += [f"The limit {name!r} is in shadow: {would}." for name, would in self.would.items()]
        return lines

    def _ago(self, at: float) -> str:
        return f"{max(0.0, self.now - at):.1f} s ago"


def explain(app: Celery, parking: Backlog, id: str) -> Explanation:
    """See :meth:`ParkingLots.explain`."""
    unasked = ""
    found = _in_lots(app, parking, id)
    if found is None:
        try:
            found = _in_workers(app, id)
        except BrokerDidNotAnswer as error:
            unasked = f"the broker does not answer, so no worker was asked ({error})"
    if found is None:
        found = _in_backend(app, id)
    if found is None:
        return Explanation(id, "unknown", time.time(), unasked=unasked)
    return replace(found, would=_would(app, found))


def _would(app: Celery, found: Explanation) -> dict[str, Would]:
    """Of the limits of its task."""
    task = app.tasks.get(found.task)
    plan = plan_of(task, found.queue) if task is not None else None
    limits = {str(limit.name): limit for limit in plan.limits} if plan is not None else {}
    if found.limit and found.limit not in limits and found.config is not None and found.config.in_force is not None:
        limits[found.limit] = found.config.in_force
    return in_shadow(app, standings_of(app, limits))[1] if limits else {}


def _in_lots(app: Celery, parking: Backlog, id: str) -> Explanation | None:
    if not parking.can_park or not id or "\0" in id:
        return None
    known = limits_of_app(app)
    names = sorted({*known, *parking.register.seen((), ()).limits})
    for places in parking.contents.find(names, [id]):
        for bucket, ids in places.items():
            for stored in ids:
                found = _in_lot(app, parking, id, bucket, stored)
                if found is not None:
                    return found
    return None


def _in_lot(app: Celery, parking: Backlog, id: str, bucket: Bucket, stored: str) -> Explanation | None:
    now, where, place, number, cost, kept = parking.contents.place(bucket, stored)
    if not where or not kept:
        return None
    _, _, since, message = text(kept).split(" ", 3)
    parcel: dict[str, Any] = loads(message)
    headers = parcel["headers"]
    (standing,) = standings_of(app, {bucket[0]: limits_of_app(app).get(bucket[0])}, bucket[1])
    limit, share, turn = limits_of_app(app).get(bucket[0]), None, None
    if where == "parked" and limit is not None and limit.fair is not None and "share" in parcel:
        share, turn = parcel["share"], parking.contents.turn(bucket, stored, weights_text(limit))
    ahead: float | None = place * cost / number if where == "parked" and number else 0.0
    if turn is not None:
        place, ahead = turn.tasks, turn.permits
    starts_at = None
    if standing.interval and where != "aside" and ahead is not None:
        starts_at = now / 1e6 + max(standing.retry_after, standing.config.paused) + ahead * standing.interval
    wait = max(0.0, (starts_at or 0.0) - now / 1e6)
    return Explanation(
        id,
        where,
        now / 1e6,
        task=str(headers.get("task", "")),
        queue=stored.rpartition("@")[2],
        limit=bucket[0],
        key=bucket[1],
        place=max(0, place),
        parked=number,
        since=int(since) / 1e6,
        starts_at=starts_at,
        band=BAND * wait + LEAST_BAND if starts_at is not None else 0.0,
        config=standing.config,
        share=share,
        weight=turn.weight if turn is not None else None,
    )


def _in_workers(app: Celery, id: str) -> Explanation | None:
    # Of workers of a version before this one nothing is said: they answer with an error.
    for worker, told in query_workers(app, "ratelimit_task", PATIENCE, id=id).items():
        if isinstance(told, dict) and "where" in told:
            return Explanation(id, told["where"], time.time(), task=told["task"], queue=told["queue"], worker=worker)
    return None


def _in_backend(app: Celery, id: str) -> Explanation | None:
    try:
        state = str(app.AsyncResult(id).state)
    except Exception:  # of a backend that is not there, or that somebody has written
        return None
    return None if state == "PENDING" else Explanation(id, "ended", time.time(), ended=state)
