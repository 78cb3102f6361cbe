"""The status of buckets: what is left in each, and which settings are in force; and the recent use of limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from celery import Celery

from ..app.app_store import limiter_of
from ..backlog.messages import Bucket
from ..limiter.limit_request import LimitRequest, own_key
from ..limiter.operation import Operation, RunScript, batches, run_all
from ..limiter.read_settings import read_config
from ..limiter.script_calls import call_of
from ..limiter.script_operations import Operations
from ..limits.any_limit import AnyLimit
from ..limits.concurrency import Concurrency
from ..limits.exactness_checks import WINDOWS
from ..limits.key_rates import limit_of_key
from ..limits.parse_rate import period_of
from ..limits.rate_limit import Limit
from ..limits.stored_settings import LimitConfig
from ..store.keys import count_keys

__all__ = ["MINUTE", "BucketStatus", "asking_standings", "recent_use", "standings_of", "usage", "use_window"]

#: Limits whose status one script reads.
AT_ONCE = 40
#: Seconds over which use is averaged, at least and at most: use is kept for a day.
MIN_USE, MINUTE, MAX_USE = 10.0, 60.0, 86_400.0
#: Entries of recent use that one script reads; and seconds that are kept singly, see ``lua/add_counts.lua``.
_ENTRIES, _SECONDS = 1500, 180


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

    @property
    def window(self) -> float:
        """Seconds of a window, whose permits may all be taken at its start; 0.0: the algorithm has none."""
        has_window = getattr(self.config.in_force, "algorithm", "") in WINDOWS
        return self.size * self.interval if has_window else 0.0

    @property
    def free(self) -> float:
        """Permits that are there at once after :attr:`retry_after`, or when a pause ends: a burst."""
        if not self.interval or getattr(self.config.in_force, "algorithm", "") == "leaky_bucket":
            return 0.0
        return max(0.0, min(self.size, self.remaining + self.config.paused / self.interval) - self.waiting)


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


def standings_of(
    app: Celery, limits: Mapping[str, AnyLimit | None], buckets: Sequence[Bucket] | None = None
) -> list[BucketStatus]:
    """How these limits stand, or some of their buckets. A limit that only the store knows is ``None``, or left out."""
    return limiter_of(app)._asker.drive(asking_standings(app, limits, buckets))


def asking_standings(
    app: Celery, limits: Mapping[str, AnyLimit | None], buckets: Sequence[Bucket] | None = None
) -> Operation[list[BucketStatus]]:
    """:func:`standings_of` as an operation."""
    core, quotas = limiter_of(app)._asker.core, limiter_of(app).quotas
    codes, demands = [], []
    for name, key in buckets if buckets is not None else [(name, "") for name in limits]:
        code = limits.get(name) or quotas.get(name)
        if code is not None:
            code = limit_of_key(code, key, ask=False)
        codes.append(code)
        demands.append(LimitRequest(code or Limit("1/s"), name, key or own_key(code or Limit("1/s"), "")))
    return bucket_statuses(core, demands, codes)


def recent_use(core: Operations, asked: Sequence[tuple[str, float]]) -> Operation[list[int]]:
    """Read the permits taken of each limit within so many seconds, up to a day; see ``lua/recent_usage.lua``.

    Nothing is read for 0 seconds.
    """
    scripts, read = [], [each for each in asked if each[1] > 0]
    for part in batches(core.is_cluster, read, len(read), _ENTRIES, lambda each: int(each[1] / _unit(each[1]))):
        keys = [count_keys(core.calls.prefix, name)[1 if _unit(within) == 1 else 2] for name, within in part]
        values = [value for _, within in part for value in (_unit(within), round(within))]
        scripts.append(RunScript(core.scripts.recent_usage, call_of(keys, values)))
    permits = [int(permits) for reply in (yield from run_all(scripts)) for permits in reply]
    found = dict(zip(read, permits, strict=True))
    return [found.get(each, 0) for each in asked]


def _unit(within: float) -> int:
    """Seconds that one entry of recent use stands for."""
    return 1 if within <= _SECONDS else 60


def use_window(limit: AnyLimit | None) -> float:
    """Seconds over which a limit's use is averaged: ten, or its period if that is longer."""
    return min(MAX_USE, max(MIN_USE, period_of(limit.rate) if isinstance(limit, Limit) else 1.0))


def usage(
    standing: BucketStatus, permits: int | None, in_minute: int | None
) -> tuple[float | None, float | None, float | None]:
    """``used``, ``share`` and ``used_in_minute`` of a limit."""
    limit = standing.config.in_force
    has_one_bucket = limit is not None and limit.key is None and not limit.per_worker
    if isinstance(limit, Concurrency):
        held = max(0, standing.size - standing.remaining)
        return (float(held), held / standing.size, None) if has_one_bucket else (None, None, None)
    if permits is None or in_minute is None:
        return None, None, None
    period, window = period_of(limit.rate) if isinstance(limit, Limit) else 1.0, use_window(limit)
    share = permits * standing.interval / window if has_one_bucket and standing.interval else None
    return permits * period / window, share, in_minute * period / MINUTE if window < MINUTE else None
