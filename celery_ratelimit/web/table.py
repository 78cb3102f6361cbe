"""What the first page shows: a row for each limit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from celery import Celery

from ..app.app_store import limiter_of
from ..counts.stats import Moment, Stats
from ..operations.limit_status import LimitStatus
from ..operations.overview import overview
from ..operations.wording import HEADS, busiest, rate_set_by, row_of, used_within
from ..words import number_of, unnamed
from .names import address_of

__all__ = ["MINUTES", "row_for", "table"]

#: Minutes that a sparkline shows.
MINUTES = 30
#: What a row says that its sparkline and its state do not.
_COLUMNS = tuple(head.lower() for head in HEADS)


def table(app: Celery) -> Mapping[str, Any]:
    """The parts of the page: each limit by its name, and all of them in a sentence."""
    found = sorted(overview(app), key=busiest)
    stats = limiter_of(app).stats([each.name for each in found], minutes=MINUTES, force=True)
    rows = {f"limit {each.name}": row_for(each, stats[each.name]) for each in found}
    return {"sentence": _sentence(found), **rows}


def row_for(each: LimitStatus, stats: Stats) -> dict[str, Any]:
    """One limit, as the command line says it; and how much of it is used."""
    config = each.standing.config
    return {
        **dict(zip(_COLUMNS, row_of(each), strict=True)),
        "address": address_of(each.name),
        "rate": unnamed(config.in_force),
        "set by": rate_set_by(config).removeprefix(unnamed(config.override)).strip(),
        "word": each.state,
        "rank": busiest(each)[0],
        "share": None if each.share is None else round(100 * each.share),
        "used within": used_within(each),
        "spark": _spark(each, stats),
        "attended": each.attended,
        "held up": bool(each.held_up) and each.drains_in is None and each.paused_until is None,
    }


def _spark(each: LimitStatus, stats: Stats) -> list[int]:
    """Permits of the last minutes, in per cent of the limit, or of the most; the last: of the last 60 seconds."""
    now = int(stats.at // 60 * 60)
    by_minute = {moment.at: moment.permits for moment in stats.minutes}
    values: list[float] = [by_minute.get(float(now - 60 * ago), 0) for ago in range(MINUTES - 1, 0, -1)]
    values.append(_last_minute(stats.minutes, stats.at))
    most = _a_minute(each) or max(values)
    return [min(100, round(100 * value / most)) if most else 0 for value in values]


def _last_minute(minutes: Sequence[Moment], at: float) -> float:
    """Permits of the last sixty seconds, about: this minute's, and the part of the one before that they reach into."""
    now = at // 60 * 60
    by_minute = {moment.at: moment.permits for moment in minutes[-2:]}
    return by_minute.get(now, 0) + by_minute.get(now - 60, 0) * (1 - (at - now) / 60)


def _a_minute(each: LimitStatus) -> float | None:
    """Permits that the limit has in a minute; ``None``: the limit has keys, or is a Concurrency."""
    interval = each.standing.interval
    return None if each.by_key or not interval else 60 / interval


def _sentence(found: Sequence[LimitStatus]) -> str:
    states = Counter(each.state for each in found)
    said = ", ".join(f"{number} {state}" for state, number in states.items())
    parked = sum(each.parked for each in found)
    return number_of(len(found), "limit") + (said and f": {said}") + (f"; {number_of(parked)} parked" if parked else "")
