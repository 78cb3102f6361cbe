"""All limits of an app at a glance: what holds, and who says so; what is left, what waits, and when that is through."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import NamedTuple

from celery import Celery

from .._celery import default_queue_of, message_counts
from ..app.settings import settings_of
from ..app.state import limiter_of
from ..app.survey import Owned, owners_of
from ..backlog.backlog import Backlog, backlog_of
from ..backlog.fleet_registry import UNATTENDED, PublishFailure
from ..counts.would import Would
from ..limiter.demand import Demand, own_key
from ..limiter.shadows import ask_shadows
from ..limiter.standing import Standing, read_standing
from ..limits.any_limit import AnyLimit
from ..limits.limit import Limit
from .limit_usage import usages_of

__all__ = ["LimitStatus", "in_shadow", "overview", "standings_of"]

#: Looks into lots, of all limits together, each as dear as so many lots: of more, tasks are counted, and the oldest is
#: not known.
LOOKS, LOTS_A_LOOK = 1100, 20


@dataclass(frozen=True, slots=True)
class LimitStatus:
    """How one limit stands.

    Attributes:
        name: of the limit.
        standing: what is in force, what is left of it, and how many have a slot; of a limit that is kept by key without
            what is left.
        by_key: whether it is kept by key.
        parked: tasks in its parking lots.
        lots: how many lots; one for each key in which tasks are parked.
        oldest: when the first parked task was throttled, in seconds since 1970; ``None``: nobody is parked, or there
            are too many lots to look into.
        used: permits that are taken of it in each period of the rate in force (a second, of ``"100/s"``): on average
            within the last minute, or the last period if that is longer, up to a day; of places, those that are held.
            ``None``: it is not known, or nothing is counted (``ratelimit_counts``).
        share: that, of what the rate in force allows: 1.0 is all of it, and a burst may be more. ``None``: it is not
            known, or the limit has a bucket for each key or worker.
        queues: those that its tasks are sent to.
        queued: messages in these and in their return queues that no worker has; ``None``: the broker does not say.
        drains_in: seconds until all of these have had their turn, at the rate that is in force, if no more come;
            ``None``: that is not known.
        attended: whether some worker has this limit, or nobody is parked.
        tasks: that it is for.
        failures: its tasks that have left the store and cannot be published, with the broker's errors.
        would: what it would have done, while it is in shadow; ``None``: it is not.
    """

    name: str
    standing: Standing
    by_key: bool
    parked: int
    lots: int
    oldest: float | None
    used: float | None
    share: float | None
    queues: tuple[str, ...]
    queued: int | None
    drains_in: float | None
    attended: bool
    tasks: tuple[str, ...]
    failures: tuple[PublishFailure, ...]

    would: Would | None = None

    @property
    def paused_until(self) -> float | None:
        """Until when it is paused, in seconds since 1970; ``None``: it is not."""
        paused = self.standing.config.paused
        return self.standing.now + paused if paused else None

    @property
    def remaining(self) -> int | None:
        """Permits that are left; ``None`` for a limit that is kept by key, or that is not known here."""
        known = self.standing.config.in_force is not None and not self.by_key
        return self.standing.remaining if known else None

    @property
    def state(self) -> str:
        """In one word: ``"shadow"``, ``"paused"``, ``"backlogged"``, ``"at its limit"``, ``"active"`` or ``"idle"``."""
        standing = self.standing
        if self.would is not None:
            return "shadow"
        if standing.config.paused:
            return "paused"
        if self.parked:
            return "backlogged"
        if self.remaining is not None and (
            standing.waiting or standing.retry_after > standing.interval or (standing.size > 1 and not self.remaining)
        ):
            return "at its limit"
        in_use = self.remaining is not None and (standing.reset_after > 0 or self.remaining < standing.size)
        return "active" if in_use else "idle"


class _InLots(NamedTuple):
    parked: int
    lots: int
    oldest: float | None
    cost: int  # of all
    dearest: int | None  # of the lot that takes longest


_NOBODY = _InLots(0, 0, None, 0, 0)


def overview(app: Celery, *names: str, force: bool = False) -> list[LimitStatus]:
    """How limits stand, by their names.

    Asks the store in steps that each keep it for a few milliseconds at most, and the broker once for each queue.

    Args:
        app: the app; its tasks have to be imported.
        names: of limits; default: all of its tasks, queues and quotas, and those that workers have or have had.
        force: names that nobody knows, too.

    Raises:
        ConfigurationError: nobody knows a limit of that name.
    """
    owned, limiter, parking = owners_of(app), limiter_of(app), backlog_of(app)
    seen = parking.register.seen((), ()).limits if parking.can_park else {}
    failures = parking.register.publish_failures() if parking.can_park else {}
    known: dict[str, AnyLimit | None] = dict.fromkeys(seen)
    known.update(settings_of(app).quotas)
    known.update({name: each.limit for name, each in owned.items()})
    for name in names:
        if name not in known:
            limiter.config(name, force=force)  # raises if nobody knows it
            known[name] = None
    chosen = {name: known[name] for name in names or sorted(known)}
    of_lots = _lots_of(parking, list(chosen)) if parking.can_park else {}
    queues = {name: _queues_of(app, owned[name]) if name in owned else () for name in chosen}
    return_queue_for = settings_of(app).return_queue_for
    wanted = [each for some in queues.values() for queue in some for each in (queue, return_queue_for(queue))]
    messages = message_counts(app, wanted)
    found = []
    standings, would = in_shadow(app, standings_of(app, chosen))
    usages = usages_of(app, standings)
    for (name, code), standing, usage in zip(chosen.items(), standings, usages, strict=True):
        asked = {each for queue in queues[name] for each in (queue, return_queue_for(queue))}
        queued = sum(messages[each] for each in asked) if asked <= messages.keys() else None
        lots = of_lots.get(name, _NOBODY)
        by_key = code is not None and code.key is not None
        found.append(
            LimitStatus(
                name,
                standing,
                by_key,
                lots.parked,
                lots.lots,
                lots.oldest,
                *usage,
                queues[name],
                queued,
                _drains_in(standing, code, lots, queued or 0, by_key=by_key),
                not lots.parked or seen.get(name, inf) < UNATTENDED,
                tuple(owned[name].tasks) if name in owned else (),
                tuple(failures.get(name, ())),
                would.get(name),
            )
        )
    return found


def standings_of(app: Celery, limits: Mapping[str, AnyLimit | None], key: str = "") -> list[Standing]:
    """How these limits stand, or the buckets of one key; ``None`` for a limit that is known to the store alone."""
    asker = limiter_of(app).asker
    demands = [
        Demand(limit or Limit("1/s"), name, key or own_key(limit or Limit("1/s"), "")) for name, limit in limits.items()
    ]
    replies = asker.drive(asker.core.standings(demands))
    return [
        read_standing(demand, code, reply)
        for demand, code, reply in zip(demands, limits.values(), replies, strict=True)
    ]


def in_shadow(app: Celery, standings: Sequence[Standing]) -> tuple[list[Standing], dict[str, Would]]:
    """The same with what is stored about their shadows; and what those that are in shadow would have done."""
    limits = {each.config.name: each.config.in_force for each in standings if each.config.shadow}
    asker = limiter_of(app).asker
    found = asker.drive(ask_shadows(asker.core, limits))
    told = []
    for each in standings:
        stored, _ = found.get(each.config.name, (None, None))
        told.append(replace(each, config=replace(each.config, stored_shadow=stored)))
    return told, {each.config.name: found[each.config.name][1] for each in told if each.config.shadow}


def _queues_of(app: Celery, owned: Owned) -> tuple[str, ...]:
    sent_to = [queue for task in owned.tasks if (queue := default_queue_of(app, task)) is not None]
    return tuple(sorted({*sent_to, *owned.queues}))


def _lots_of(parking: Backlog, names: Sequence[str]) -> dict[str, _InLots]:
    looks, found = float(LOOKS), {}
    counts = parking.contents.counts(names)
    for name, (number, parked) in sorted(counts.items(), key=lambda each: each[1]):
        looks -= 1 + number / LOTS_A_LOOK
        if looks < 0:
            found[name] = _InLots(parked, number, None, parked, None)
            continue
        lots = [lot for lot in parking.contents.lots([name]) if lot.parked]
        costs = [lot.cost for lot in lots]
        oldest = min([lot.oldest for lot in lots], default=None)
        found[name] = _InLots(sum(lot.parked for lot in lots), len(lots), oldest, sum(costs), max(costs, default=0))
    return found


def _drains_in(standing: Standing, code: AnyLimit | None, lots: _InLots, queued: int, *, by_key: bool) -> float | None:
    """Each key's lot drains for itself; what the broker holds of a limit by key is nobody's yet."""
    cost = code.cost if code is not None and isinstance(code.cost, int) else 1
    ahead = lots.dearest if by_key else lots.cost + cost * queued
    if ahead == 0 and not standing.waiting:
        return 0.0
    if ahead is None or not standing.interval:
        return None
    return max(standing.retry_after, standing.config.paused) + ahead * standing.interval
