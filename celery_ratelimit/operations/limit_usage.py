"""What is used of limits now: out of what the whole fleet has counted lately."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from celery import Celery

from ..app.settings import settings_of
from ..app.state import limiter_of
from ..limiter.counted import ask_used
from ..limiter.standing import Standing
from ..limits.any_limit import AnyLimit
from ..limits.concurrency import Concurrency
from ..limits.limit import Limit
from ..limits.rate import period_of

__all__ = ["Usage", "usages_of"]

#: Seconds within which it is looked at what is used, at least; and at most: that is how long it is kept.
LATELY, LONGEST = 60.0, 86_400.0


class Usage(NamedTuple):
    """What is used of one limit: see :class:`~celery_ratelimit.operations.limit_status.LimitStatus`."""

    used: float | None
    share: float | None


def usages_of(app: Celery, standings: Sequence[Standing]) -> list[Usage]:
    """Of limits that stand like this. Asks the store once for dozens of them."""
    settings = settings_of(app)
    if not settings.counts or settings.in_memory:
        return [_of_places(standing) or Usage(None, None) for standing in standings]
    asker, periods = limiter_of(app).asker, list(map(_period_of, standings))
    within = [min(LONGEST, max(LATELY, period)) for period in periods]
    names = [standing.config.name for standing in standings]
    permits = asker.drive(ask_used(asker.core, list(zip(names, within, strict=True))))
    return list(_usages(standings, periods, within, permits))


def _usages(
    standings: Sequence[Standing], periods: Sequence[float], within: Sequence[float], permits: Sequence[int]
) -> Iterator[Usage]:
    for standing, period, seconds, taken in zip(standings, periods, within, permits, strict=True):
        of_places = _of_places(standing)
        if of_places is not None:
            yield of_places
            continue
        is_one = _is_one(standing.config.in_force) and standing.interval > 0
        yield Usage(taken * period / seconds, taken * standing.interval / seconds if is_one else None)


def _of_places(standing: Standing) -> Usage | None:
    """Places are held, not taken in a time."""
    limit = standing.config.in_force
    if not isinstance(limit, Concurrency):
        return None
    if not _is_one(limit):
        return Usage(None, None)
    held = max(0, standing.size - standing.remaining)
    return Usage(float(held), held / standing.size)


def _is_one(limit: AnyLimit | None) -> bool:
    """Whether it is one bucket for the whole fleet, so that all that was taken was taken of that."""
    return limit is not None and limit.key is None and not limit.per_worker


def _period_of(standing: Standing) -> float:
    limit = standing.config.in_force
    return period_of(limit.rate) if isinstance(limit, Limit) else 1.0
