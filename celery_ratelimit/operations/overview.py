"""Reads the status of limits, in round trips that do not grow with their number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from celery import Celery

from .._celery import default_queue_of, message_counts
from ..app.app_store import limiter_of
from ..app.settings import settings_of
from ..app.survey import Owned, owners_of
from ..backlog.backlog import Backlog, backlog_of
from ..backlog.backlog_contents import LotCounts
from ..backlog.fleet_registry import PublishFailure, UnattendedLimitsAndQueues
from ..backlog.messages import LotSnapshot
from ..backlog.tuning import KEYS_READ_AT_ONCE, QUEUE_KNOWN
from ..counts.shadow_report import ShadowReport
from ..limiter.operation import Operation, at_once
from ..limiter.report_counts import ask_counts
from ..limiter.shadow import ask_shadows
from ..limits.any_limit import AnyLimit
from .backlogs import KeySettings, asking_held_up, asking_key_settings, asking_weights, held_back, readable
from .bucket_status import MINUTE, BucketStatus, asking_standings, recent_use, usage, use_window
from .forecast import Throughput, window
from .limit_status import LimitStatus

__all__ = ["asking_overview", "in_shadow", "overview"]

#: Lots that are read, of all limits together: about 0.2 s of the store's time. Beyond that tasks are counted, and the
#: oldest is not known.
MAX_LOTS = 20_000
#: Keys with settings of their own that are named.
MAX_NAMED = 50


@dataclass(slots=True)
class _Readings:
    """What is read of limits first, by their names; limits without lots, settings or weights are left out."""

    standings: dict[str, BucketStatus] = field(default_factory=dict)
    counts: dict[str, LotCounts] = field(default_factory=dict)
    settings: dict[str, KeySettings] = field(default_factory=dict)
    weights: dict[str, dict[str, float]] = field(default_factory=dict)

    def asking(self, app: Celery, backlog: Backlog, limits: Mapping[str, AnyLimit | None]) -> Operation[None]:
        """Read these limits, too."""
        names = list(limits) if backlog.can_park else []
        keyed = [name for name in names if (code := limits[name]) is None or code.key is not None]
        fair = {name: code for name in names if (code := limits[name]) is not None and code.fair is not None}
        standings, counts, settings, weights = yield from at_once(
            asking_standings(app, limits),
            backlog.contents.asking_counts(names, KEYS_READ_AT_ONCE),
            asking_key_settings(backlog, keyed),
            asking_weights(app, fair),
        )
        self.standings.update(zip(limits, standings, strict=True))
        self.counts |= counts
        self.settings |= settings
        self.weights |= weights


def overview(
    app: Celery, *names: str, force: bool = False, ask_broker: bool = True, max_lots: float | None = None
) -> list[LimitStatus]:
    """The status of limits, by their names.

    Three round trips; one more if keys with parked tasks have settings of their own, if only workers know some limits,
    and for each few hundred parking lots beyond a thousand. Scripts of a few milliseconds.

    Args:
        app: the app; its tasks have to be imported.
        names: of limits; default: all of its tasks, queues and quotas, and all that workers have or have had.
        force: unknown names, too.
        ask_broker: else ``queued`` is not known.
        max_lots: lots that are read; default: :data:`MAX_LOTS`.

    Raises:
        ConfigurationError: a name is not known.
    """
    asking = asking_overview(app, *names, force=force, ask_broker=ask_broker, max_lots=max_lots)
    return limiter_of(app)._asker.drive(asking)


def asking_overview(
    app: Celery, *names: str, force: bool = False, ask_broker: bool = True, max_lots: float | None = None
) -> Operation[list[LimitStatus]]:
    """:func:`overview` as an operation."""
    owned, backlog, settings = owners_of(app), backlog_of(app), settings_of(app)
    known: dict[str, AnyLimit | None] = {**settings.quotas, **{name: each.limit for name, each in owned.items()}}
    readings = _Readings()
    first = {name: known[name] for name in names or known if name in known}
    (seen, failures), _ = yield from at_once(_asking_workers(backlog), readings.asking(app, backlog, first))
    for name in names:
        if name not in known and name not in seen.limits:
            limiter_of(app).config(name, force=force)  # raises if the name is unknown
    others = {name: None for name in names or seen.limits if name not in known}
    yield from readings.asking(app, backlog, others)
    known |= others
    limits = {name: known[name] for name in names or sorted(known)}
    standings = [readings.standings[name] for name in limits]
    read = readable(readings.counts, MAX_LOTS if max_lots is None else max_lots)
    (told, reports), snapshots = yield from at_once(
        _asking_shadows(app, standings), backlog.contents.asking_lots(backlog.contents.buckets(read))
    )
    lots: dict[str, list[LotSnapshot]] = {name: [] for name in read}
    for lot in snapshots:
        if lot.parked:
            lots[lot.name].append(lot)
    queues = {name: _queues_of(app, owned[name]) if name in owned else () for name in limits}
    with_returns = {name: {*some, *map(settings.return_queue_for, some)} for name, some in queues.items()}
    messages = message_counts(app, set().union(*with_returns.values())) if ask_broker else {}
    back = held_back(app, readings.weights, lots)
    found = []
    for (name, code), standing in zip(limits.items(), told, strict=True):
        counts, of_limit = readings.counts.get(name, LotCounts(0, 0, ())), lots.get(name)
        if of_limit is None and not counts.lots:
            of_limit = []
        is_counted = with_returns[name] <= messages.keys()
        found.append(
            LimitStatus(
                name,
                standing,
                by_key=code is not None and code.key is not None,
                parked=counts.parked if of_limit is None else sum(lot.parked for lot in of_limit),
                lots=counts.lots if of_limit is None else len(of_limit),
                oldest=min([lot.oldest for lot in of_limit or ()], default=None),
                queues=queues[name],
                queued=sum(messages[queue] for queue in with_returns[name]) if is_counted else None,
                attended=not counts.lots or seen.attends(name),
                tasks=tuple(owned[name].tasks) if name in owned else (),
                failures=tuple(failures.get(name, ())),
                shadow_report=reports.get(name),
                parking_lots=of_limit,
                key_settings=[(kind, key) for kind, key, _ in readings.settings.get(name, ())],
                of_keys={},
                held_up="",
                held_back=back.get(name, {}),
            )
        )
    core, asked = limiter_of(app)._asker.core, list(limits) if names and not settings.in_memory else []
    up, found, stats = yield from at_once(
        asking_held_up(backlog, queues, lots, seen),
        _asking_keys_and_use(app, limits, found, named=bool(names)),
        ask_counts(core, asked, minutes=60),
    )
    upstream = {each.name: each.upstream() for each in stats}
    return [replace(each, held_up=up.get(each.name, ""), upstream=upstream.get(each.name, {})) for each in found]


def _asking_workers(
    backlog: Backlog,
) -> Operation[tuple[UnattendedLimitsAndQueues, dict[str, list[PublishFailure]]]]:
    """What workers have reported: limits and queues, and tasks that cannot be published."""
    if not backlog.can_park:
        return UnattendedLimitsAndQueues({}, {}, {}), {}
    register = backlog.register
    seen, failures = yield from at_once(register.asking_seen(after=-QUEUE_KNOWN), register.asking_publish_failures())
    return seen, failures


def _asking_keys_and_use(
    app: Celery, limits: Mapping[str, AnyLimit | None], found: Sequence[LimitStatus], *, named: bool
) -> Operation[list[LimitStatus]]:
    """The same with the status of some keys, and with the permits that were taken of each limit lately."""
    buckets = [(each.name, key) for each in found for key in _keys_of(each, named=named)]
    of_keys: dict[str, dict[str, BucketStatus]] = {each.name: {} for each in found}
    for (name, key), standing in zip(buckets, (yield from asking_standings(app, limits, buckets)), strict=True):
        of_keys[name][key] = standing
    found = [replace(each, of_keys=of_keys[each.name]) for each in found]
    taken: Sequence[int | None] = [None] * 3 * len(found)
    if settings_of(app).counts and not settings_of(app).in_memory:
        asked = []
        for each in found:
            usual = use_window(each.standing.config.in_force)
            windows = usual, MINUTE if usual < MINUTE else 0.0, window(each.age)
            asked += [(each.name, seconds) for seconds in windows]
        taken = yield from recent_use(limiter_of(app)._asker.core, asked)
    with_use = []
    for each, used, minute, permits in zip(found, taken[::3], taken[1::3], taken[2::3], strict=True):
        lately, share, in_minute = usage(each.standing, used, minute)
        last = use_window(each.standing.config.in_force)
        throughput = each.measured(permits, used, last) if permits is not None and used is not None else Throughput()
        with_use.append(replace(each, used=lately, share=share, used_in_minute=in_minute, throughput=throughput))
    return with_use


def _keys_of(limit: LimitStatus, *, named: bool) -> list[str]:
    """Keys whose status is read: with settings of their own and a lot, or ``named``; and of the dearest other lot."""
    some, settled = limit.parking_lots or (), dict.fromkeys([key for _, key in limit.key_settings])
    dearest = max((lot for lot in some if lot.key not in settled), key=lambda lot: lot.cost, default=None)
    keys = [lot.key for lot in some if lot.key and (lot.key in settled or lot is dearest)]
    return list(dict.fromkeys([*keys, *(list(settled)[:MAX_NAMED] if named else ())]))


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
