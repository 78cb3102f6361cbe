"""The status of buckets: what is left in each, and which settings are in force; and the recent use of limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from celery import Celery

from ..app.settings import settings_of
from ..app.state import limiter_of
from ..limiter.limit_request import LimitRequest
from ..limiter.operation import Operation, RunScript, batches, run_all
from ..limiter.script_calls import call_of
from ..limiter.script_operations import Operations
from ..limiter.stored_settings import read_config
from ..limits.any_limit import AnyLimit
from ..limits.concurrency import Concurrency
from ..limits.limit import Limit
from ..limits.rate import period_of
from ..limits.stored import LimitConfig
from ..store.keys import count_keys

__all__ = ["BucketStatus", "asking_usage", "bucket_statuses", "recent_use"]

#: Limits whose status one script reads.
AT_ONCE = 40
#: Entries of recent use that one script reads; and seconds that are kept singly, see ``lua/add_counts.lua``.
_ENTRIES, _SECONDS = 1500, 180
#: Seconds over which use is averaged, at least and at most: use is kept for a day.
MIN_WINDOW, MAX_WINDOW = 60.0, 86_400.0


@dataclass(frozen=True, slots=True)
class BucketStatus:
    """The status of one bucket of a limit.

    Attributes:
        config: the limit in force, and its stored settings.
        now: the store's clock, in seconds since 1970.
        remaining: permits left.
        size: permits of the full bucket.
        reset_after: seconds until the bucket is full, if no permit is taken.
        retry_after: seconds until a new request gets a permit, behind waiting requests; includes a pause.
        waiting: number of requests that have a slot.
        interval: mean seconds from one permit to the next; 0.0: not known, as for leases.
    """

    config: LimitConfig
    now: float
    remaining: int
    size: int
    reset_after: float
    retry_after: float
    waiting: int
    interval: float


def bucket_statuses(
    core: Operations, demands: Sequence[LimitRequest], codes: Sequence[AnyLimit | None]
) -> Operation[list[BucketStatus]]:
    """The status of each bucket; ``codes``: each limit as the code here has it, ``None``: not at all.

    One round trip. Each script reads a bounded number of limits, to keep the store free. The first error is raised.
    """
    steps = [step for part in core.by_slot(demands) for step in batches(False, part, AT_ONCE)]
    calls = [core.calls.of_standing([demands[i] for i in step]) for step in steps]
    replies = yield from run_all([RunScript(core.scripts.limit_levels, call) for call in calls])
    found = {i: each for step, reply in zip(steps, replies, strict=True) for i, each in zip(step, reply, strict=True)}
    return [_read(demand, codes[i], found[i]) for i, demand in enumerate(demands)]


def _read(demand: LimitRequest, code: Any, reply: Sequence[Any]) -> BucketStatus:
    """One limit's part of the reply; ``code``: the limit as the code here has it, ``None``: not at all."""
    now, remaining, full, wait, waiting, size, count, period, *stored = reply
    config = read_config(demand.name, demand.key, code, [int(now), *stored])
    in_force = config.in_force
    interval = in_force.interval if in_force is not None else 0.0
    return BucketStatus(
        config,
        int(now) / 1e6,
        int(remaining),
        int(size),
        int(full) / 1e6,
        int(wait) / 1e6,
        int(waiting),
        int(period) / int(count) / 1e6 if interval and int(count) else interval,
    )


def asking_usage(app: Celery, standings: Sequence[BucketStatus]) -> Operation[list[tuple[float | None, float | None]]]:
    """``used`` and ``share`` of each limit: one script for dozens of them."""
    limits = [standing.config.in_force for standing in standings]
    periods = [period_of(limit.rate) if isinstance(limit, Limit) else 1.0 for limit in limits]
    windows = [min(MAX_WINDOW, max(MIN_WINDOW, period)) for period in periods]
    taken: Sequence[int | None] = [None] * len(standings)
    if settings_of(app).counts and not settings_of(app).in_memory:
        names = [standing.config.name for standing in standings]
        taken = yield from recent_use(limiter_of(app)._asker.core, list(zip(names, windows, strict=True)))
    found: list[tuple[float | None, float | None]] = []
    for standing, limit, period, window, permits in zip(standings, limits, periods, windows, taken, strict=True):
        has_one_bucket = limit is not None and limit.key is None and not limit.per_worker
        if isinstance(limit, Concurrency):
            held = max(0, standing.size - standing.remaining)
            found.append((float(held), held / standing.size) if has_one_bucket else (None, None))
        elif permits is None:
            found.append((None, None))
        else:
            share = permits * standing.interval / window if has_one_bucket and standing.interval else None
            found.append((permits * period / window, share))
    return found


def recent_use(core: Operations, asked: Sequence[tuple[str, float]]) -> Operation[list[int]]:
    """Read the permits taken of each limit within so many seconds, up to a day; see ``lua/recent_usage.lua``."""
    scripts = []
    for part in batches(core.is_cluster, asked, len(asked), _ENTRIES, lambda each: int(each[1] / _unit(each[1]))):
        keys = [count_keys(core.calls.prefix, name)[1 if _unit(within) == 1 else 2] for name, within in part]
        values = [value for _, within in part for value in (_unit(within), round(within))]
        scripts.append(RunScript(core.scripts.recent_usage, call_of(keys, values)))
    return [int(permits) for reply in (yield from run_all(scripts)) for permits in reply]


def _unit(within: float) -> int:
    """Seconds that one entry of recent use stands for."""
    return 1 if within <= _SECONDS else 60
