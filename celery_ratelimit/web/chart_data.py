"""What was used of a limit over time, beside what the limit was: for a picture of it. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..counts.stats import Moment, Stats
from ..limits.any_limit import AnyLimit
from ..limits.concurrency import Concurrency
from ..limits.stored_settings import Change
from ..operations.wording import history_row
from ..words import clock

__all__ = ["RANGES", "charts", "limit_at"]

#: The ranges by their names: how many bars there are, of how many seconds each, and after how many there is a time.
RANGES = {"3 minutes": (180, 1, 30), "3 hours": (180, 60, 30), "24 hours": (144, 600, 24)}


def charts(stats: Stats, code: AnyLimit | None, changes: Sequence[Change]) -> dict[str, Any]:
    """A picture for each range: permits a second, or a minute, what the limit was then, and each change of it."""
    limit = limit_at(code, changes)
    return {
        name: _chart(stats, changes, limit, bars, seconds, ticks) for name, (bars, seconds, ticks) in RANGES.items()
    }


def _chart(
    stats: Stats,
    changes: Sequence[Change],
    limit: Callable[[float], float | None],
    bars: int,
    seconds: int,
    ticks: int,
) -> dict[str, Any]:
    last = int(stats.at // seconds) * seconds
    first = last - (bars - 1) * seconds
    unit = min(60, seconds)  # permits a second, or a minute
    values = [0.0] * bars
    moments: Sequence[Moment] = stats.seconds if seconds == 1 else stats.minutes
    for moment in moments:
        bar = int(moment.at - first) // seconds
        if 0 <= bar < bars:
            values[bar] += moment.permits * unit / seconds
    limits = [limit(first + seconds * (bar + 0.5)) for bar in range(bars)]
    marks = [
        [round((change.at - first) / seconds, 1), _said(history_row(change))]
        for change in changes
        if change.at >= first
    ]
    return {
        "unit": "second" if unit == 1 else "minute",
        "values": [_short(value) for value in values],
        "limits": [None if each is None else _short(each * unit) for each in limits],
        "marks": marks,
        "ticks": [[bar, clock(first + bar * seconds)] for bar in range(bars - 1, -1, -ticks)],
    }


def limit_at(code: AnyLimit | None, changes: Sequence[Change]) -> Callable[[float], float | None]:
    """Permits a second that the whole limit had at a time, by what was changed: 0 while it was paused.

    ``None``: a concurrency limit, a limit with keys, or an unknown one.
    """
    of_all = [change for change in changes if not change.key and change.verb not in ("reset", "weight", "shadow")]

    def at(time: float) -> float | None:
        if code is not None and code.key is not None:
            return None
        before = [change for change in of_all if change.at <= time]
        stored = before[-1].after if before else of_all[0].before if of_all else None
        if stored is None:
            return _rate(code)
        if stored.paused_until is not None and time < stored.paused_until and before:
            return 0.0
        has_ended = stored.until is not None and stored.until <= time
        return _rate(code if has_ended or stored.limit is None else stored.limit)

    return at


def _rate(limit: AnyLimit | None) -> float | None:
    return None if limit is None or isinstance(limit, Concurrency) else 1 / limit.interval


def _said(row: tuple[str, ...]) -> str:
    when, author, what, key, _, after, reason = row
    of = f" of {key}" if key != "-" else ""
    to = f": {after.removeprefix('weight ')}" if after != "-" else ""
    return f"{when} {author}, {what}{of}{to}" + (f" ({reason})" if reason != "-" else "")


def _short(value: float) -> float:
    return float(f"{value:.4g}")
