"""The status of limits and of their parking lots: what is in force, used and left, what waits and for how long."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import NamedTuple

from celery import Celery

from .._celery import default_queue_of, message_counts
from ..app.settings import settings_of
from ..app.state import limiter_of
from ..app.survey import Owned, owners_of
from ..backlog.backlog import backlog_of
from ..backlog.backlog_contents import LotCounts
from ..backlog.fleet_registry import PublishFailure, UnattendedLimitsAndQueues
from ..backlog.messages import Bucket, LotSnapshot
from ..backlog.tuning import KEYS_READ_AT_ONCE
from ..counts.shadow_report import ShadowReport
from ..limiter.limit_request import LimitRequest, own_key
from ..limiter.operation import Operation, at_once
from ..limiter.shadow import ask_shadows
from ..limits.any_limit import AnyLimit
from ..limits.limit import Limit
from .bucket_status import BucketStatus, asking_usage, bucket_statuses

__all__ = ["LimitStatus", "ParkingLot", "in_shadow", "lots_of", "overview", "standings_of"]

#: Lots that are read, of all limits together: about 0.2 s of the store's time. Beyond that tasks are counted, and the
#: oldest is not known.
MAX_LOTS = 20_000


@dataclass(frozen=True, slots=True)
class LimitStatus:
    """The status of one limit.

    Attributes:
        name: of the limit.
        standing: what is in force, what is left, and how many requests have a slot. Of a limit with keys what is left
            has no meaning.
        by_key: whether the limit has keys.
        parked: parked tasks.
        lots: parking lots in which they are, one for each key.
        oldest: when the first parked task was throttled, in seconds since 1970; ``None``: no task is parked, or there
            are too many lots to read.
        used: permits taken in each period of the rate in force (a second, of ``"100/s"``), on average over the last
            minute, or the last period if that is longer, up to a day. Of a concurrency limit: held permits. ``None``:
            not known, or not counted (``ratelimit_counts``).
        share: ``used`` as a share of the rate in force; a burst may exceed 1.0. ``None``: not known, or the limit has a
            bucket for each key or worker.
        queues: queues to which its tasks are sent.
        queued: messages that wait in these queues and their return queues; ``None``: the broker does not say.
        drains_in: seconds until all of these have had their turn, if no more come; ``None``: not known.
        attended: whether a worker has this limit, or no task is parked.
        tasks: names of its tasks.
        failures: its tasks that have left the store and cannot be published, with the broker's errors.
        shadow_report: what the limit would have done, while it is in shadow.
    """

    name: str
    standing: BucketStatus
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
    failures: tuple[PublishFailure, ...] = ()
    shadow_report: ShadowReport | None = None

    @property
    def paused_until(self) -> float | None:
        """The end of its pause, in seconds since 1970; ``None``: it is not paused."""
        paused = self.standing.config.paused
        return self.standing.now + paused if paused else None

    @property
    def remaining(self) -> int | None:
        """Permits that are left; ``None`` for a limit with keys, or one that this code does not have."""
        return None if self.by_key or self.standing.config.in_force is None else self.standing.remaining

    @property
    def state(self) -> str:
        """In one word: ``"shadow"``, ``"paused"``, ``"backlogged"``, ``"at its limit"``, ``"active"`` or ``"idle"``."""
        standing = self.standing
        if self.shadow_report is not None:
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


@dataclass(frozen=True, slots=True)
class ParkingLot:
    """What is parked for one bucket.

    Attributes:
        name: of the limit.
        key: of the bucket; ``""``: the limit has only one.
        parked: tasks.
        oldest: when the first of them was throttled, in seconds since 1970.
        drains_in: seconds until all have had their turn, at the rate in force; ``None``: not known, as under
            :class:`~celery_ratelimit.Concurrency`.
        attended: whether a worker has this limit. Else its tasks return to the queues that they were sent to,
            ``ratelimit_orphans_after`` seconds after the last worker had it.
        cost: permits that the tasks cost.
    """

    name: str
    key: str
    parked: int
    oldest: float
    drains_in: float | None
    attended: bool = True
    cost: int = 0


class _Parked(NamedTuple):
    """What is parked for one limit: tasks, lots, the oldest task, permits that all cost, and the dearest lot."""

    tasks: int = 0
    lots: int = 0
    oldest: float | None = None
    cost: int = 0
    dearest: int | None = 0


def overview(app: Celery, *names: str, force: bool = False, ask_broker: bool = True) -> list[LimitStatus]:
    """The status of limits, by their names.

    Three round trips, and one more for each few hundred parking lots beyond a thousand; scripts of a few milliseconds.

    Args:
        app: the app; its tasks have to be imported.
        names: of limits; default: all of its tasks, queues and quotas, and all that workers have or have had.
        force: unknown names, too.
        ask_broker: else ``queued`` is not known.

    Raises:
        ConfigurationError: a name is not known.
    """
    return limiter_of(app)._asker.drive(asking_overview(app, *names, force=force, ask_broker=ask_broker))


def asking_overview(
    app: Celery, *names: str, force: bool = False, ask_broker: bool = True
) -> Operation[list[LimitStatus]]:
    """:func:`overview` as an operation."""
    owned, backlog, settings = owners_of(app), backlog_of(app), settings_of(app)
    seen, failures = UnattendedLimitsAndQueues({}, {}, {}), dict[str, list[PublishFailure]]()
    if (register := backlog.register) and backlog.can_park:
        seen, failures = yield from at_once(register.asking_seen(), register.asking_publish_failures())
    known: dict[str, AnyLimit | None] = {**dict.fromkeys(seen.limits), **settings.quotas}
    known.update({name: each.limit for name, each in owned.items()})
    for name in names:
        if name not in known:
            limiter_of(app).config(name, force=force)  # raises if the name is unknown
            known[name] = None
    limits = {name: known[name] for name in names or sorted(known)}
    asking_counts = backlog.contents.asking_counts(list(limits) if backlog.can_park else [], KEYS_READ_AT_ONCE)
    standings, counts = yield from at_once(_asking_standings(app, limits), asking_counts)
    asking_lots = backlog.contents.asking_lots(backlog.contents.buckets(_few_lots(counts)))
    (standings, reports), usage, lots = yield from at_once(
        _asking_shadows(app, standings), asking_usage(app, standings), asking_lots
    )
    parked_of = _parked_of(counts, lots)
    queues = {name: _queues_of(app, owned[name]) if name in owned else () for name in limits}
    with_returns = {name: {*some, *map(settings.return_queue_for, some)} for name, some in queues.items()}
    messages = message_counts(app, set().union(*with_returns.values())) if ask_broker else {}
    found = []
    for (name, code), standing, (used, share) in zip(limits.items(), standings, usage, strict=True):
        parked, by_key = parked_of.get(name, _Parked()), code is not None and code.key is not None
        is_counted = with_returns[name] <= messages.keys()
        queued = sum(messages[queue] for queue in with_returns[name]) if is_counted else None
        found.append(
            LimitStatus(
                name=name,
                standing=standing,
                by_key=by_key,
                parked=parked.tasks,
                lots=parked.lots,
                oldest=parked.oldest,
                used=used,
                share=share,
                queues=queues[name],
                queued=queued,
                drains_in=_drains_in(standing, code, parked, queued or 0, by_key=by_key),
                attended=not parked.tasks or seen.attends(name),
                tasks=tuple(owned[name].tasks) if name in owned else (),
                failures=tuple(failures.get(name, ())),
                shadow_report=reports.get(name),
            )
        )
    return found


def lots_of(app: Celery, limits: Mapping[str, AnyLimit], names: Sequence[str] = ()) -> list[ParkingLot]:
    """The lots in which tasks are parked; default: of ``limits``, and of all that workers have or have had."""
    backlog = backlog_of(app)
    seen = backlog.register.seen()
    lots = [lot for lot in backlog.contents.lots(names or sorted({*limits, *seen.limits})) if lot.parked]
    standings = standings_of(app, limits, [(lot.name, lot.key) for lot in lots])
    return [
        ParkingLot(
            name=lot.name,
            key=lot.key,
            parked=lot.parked,
            oldest=lot.oldest,
            drains_in=standing.config.paused + lot.cost * standing.interval if standing.interval else None,
            attended=seen.attends(lot.name),
            cost=lot.cost,
        )
        for lot, standing in zip(lots, standings, strict=True)
    ]


def standings_of(
    app: Celery, limits: Mapping[str, AnyLimit | None], buckets: Sequence[Bucket] | None = None
) -> list[BucketStatus]:
    """How these limits stand, or some of their buckets. A limit that only the store knows is ``None``, or left out."""
    return limiter_of(app)._asker.drive(_asking_standings(app, limits, buckets))


def _asking_standings(
    app: Celery, limits: Mapping[str, AnyLimit | None], buckets: Sequence[Bucket] | None = None
) -> Operation[list[BucketStatus]]:
    core, quotas = limiter_of(app)._asker.core, limiter_of(app).quotas
    codes, demands = [], []
    for name, key in buckets if buckets is not None else [(name, "") for name in limits]:
        code = limits.get(name) or quotas.get(name)
        codes.append(code)
        demands.append(LimitRequest(code or Limit("1/s"), name, key or own_key(code or Limit("1/s"), "")))
    return bucket_statuses(core, demands, codes)


def in_shadow(app: Celery, standings: Sequence[BucketStatus]) -> tuple[list[BucketStatus], dict[str, ShadowReport]]:
    """The same with what is stored about their shadows; and what limits in shadow would have done, by name."""
    return limiter_of(app)._asker.drive(_asking_shadows(app, standings))


def _asking_shadows(
    app: Celery, standings: Sequence[BucketStatus]
) -> Operation[tuple[list[BucketStatus], dict[str, ShadowReport]]]:
    limits = {each.config.name: each.config.in_force for each in standings if each.config.shadow}
    found = yield from ask_shadows(limiter_of(app)._asker.core, limits)
    kept = {name: each for name, (each, _) in found.items()}
    told = [replace(each, config=replace(each.config, stored_shadow=kept.get(each.config.name))) for each in standings]
    return told, {name: report for name, (_, report) in found.items()}


def _queues_of(app: Celery, owned: Owned) -> tuple[str, ...]:
    sent_to = [queue for task in owned.tasks if (queue := default_queue_of(app, task)) is not None]
    return tuple(sorted({*sent_to, *owned.queues}))


def _few_lots(counts: Mapping[str, LotCounts]) -> dict[str, LotCounts]:
    """The limits whose lots are read: the ones with the fewest, up to :data:`MAX_LOTS` in all."""
    fewest = sorted(counts, key=lambda name: counts[name].lots)
    total = accumulate(counts[name].lots for name in fewest)
    return {name: counts[name] for name, lots in zip(fewest, total, strict=True) if lots <= MAX_LOTS}


def _parked_of(counts: Mapping[str, LotCounts], read: Sequence[LotSnapshot]) -> dict[str, _Parked]:
    found = {name: _Parked(each.parked, each.lots, None, each.parked, None) for name, each in counts.items()}
    lots_of: dict[str, list[LotSnapshot]] = {name: [] for name in _few_lots(counts)}
    for lot in read:
        if lot.parked:
            lots_of[lot.name].append(lot)
    for name, lots in lots_of.items():
        costs, oldest = [lot.cost for lot in lots], min([lot.oldest for lot in lots], default=None)
        found[name] = _Parked(sum(lot.parked for lot in lots), len(lots), oldest, sum(costs), max(costs, default=0))
    return found


def _drains_in(
    standing: BucketStatus, code: AnyLimit | None, parked: _Parked, queued: int, *, by_key: bool
) -> float | None:
    """Lots of keys drain side by side; to which key a message in a queue belongs is not known."""
    cost = code.cost if code is not None and isinstance(code.cost, int) else 1
    ahead = parked.dearest if by_key else parked.cost + cost * queued
    if ahead == 0 and not standing.waiting:
        return 0.0
    if ahead is None or not standing.interval:
        return None
    return max(standing.retry_after, standing.config.paused) + ahead * standing.interval
