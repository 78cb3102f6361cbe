"""What the page of one limit shows."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Any

from celery import Celery

from ..app.app_store import limiter_of
from ..counts.stats import Stats
from ..operations.overview import overview
from ..operations.parked_tasks import parked_page
from ..operations.read_parking_lots import longest
from ..operations.wording import HISTORY_HEADS, PARKED_HEADS, facts_of, history_row, parked_row
from ..words import clock, length, plain
from .chart_data import charts
from .names import quoted
from .table import row_for

__all__ = ["PAGE", "limit", "parked"]

#: Tasks on a page, and users of each kind that are named.
PAGE, MOST_USERS = 25, 10
#: Outcomes whose names do not say what has happened.
_OUTCOMES = {"acquired": "started at once", "waited": "started after a wait"}


def limit(app: Celery, name: str) -> Mapping[str, Any]:
    """The parts of the page."""
    limiter = limiter_of(app)
    (each,) = overview(app, name, force=True)
    stats = limiter.stats(name, force=True)[name]
    changes = limiter.history(name, force=True)
    code = each.standing.config.code
    row = row_for(each, stats)
    drawn = charts(stats, code, changes)
    parts: dict[str, Any] = {
        "state": {name: row[name] for name in ("state", "word", "used", "share", "used within", "held up")},
        "facts": [list(fact) for fact in facts_of(each, longest(app, each))],
        "is stored": each.standing.config.stored is not None,
        "is paused": each.paused_until is not None,
        "waits": _waits(stats),
        "results": [
            [_OUTCOMES.get(outcome, outcome.replace("_", " ")), f"{number:,}"]
            for outcome, number in stats.results.items()
            if number
        ],
        "users": _users(stats),
        "history heads": list(HISTORY_HEADS),
        "history": [list(history_row(each)) for each in reversed(changes)],
        "parked": each.parked,
        **{f"chart {range}": chart for range, chart in drawn.items()},
    }
    if code is not None and code.fair is not None:
        parts["weights"] = [
            [plain(share), f"{said.weight:g}", f"{said.code:g}", _by(said)]
            for share, said in limiter.weights(name, force=True).items()
        ]
    return parts


def parked(app: Celery, name: str, key: str | None, page: int) -> dict[str, Any]:
    """A page of the tasks that are parked for a limit, in the order of their turns."""
    total, rows = parked_page(app, name, key, (page - 1) * PAGE, PAGE, force=True)
    return {
        "heads": list(PARKED_HEADS),
        "rows": [[*parked_row(row), _call(row["task"])] for row in rows],
        "tasks": [{"id": row["task"].id, "address": f"/task?id={quoted(row['task'].id)}"} for row in rows],
        "total": total,
        "page": page,
        "pages": max(1, -(-total // PAGE)),
    }


def _call(task: Any) -> str:
    """With which arguments: as logs show them."""
    return plain(f"{task.args} {task.kwargs}".strip())[:200]


def _by(said: Any) -> str:
    return plain(f"{said.by} {clock(said.since)}") if said.stored is not None else "-"


def _waits(stats: Stats) -> dict[str, Any]:
    """How long until they started: quantiles by the upper ends of their buckets, and a bar for each bucket."""
    number = sum(waited for _, waited in stats.waits)
    bars, before = [], 0.0
    for bound, waited in stats.waits:
        share = round(100 * waited / number, 1) if number else 0.0
        bars.append([_bound(bound, before), share])
        before = bound
    return {
        "number": f"{number:,}",
        "p50": _quantile(stats, 0.5) if number else "-",
        "p95": _quantile(stats, 0.95) if number else "-",
        "bars": bars,
    }


def _quantile(stats: Stats, share: float) -> str:
    bound = stats.waited_at_most(share)
    if bound == inf:
        return f"> {_length(stats.waits[-2][0])}"
    return f"≤ {_length(bound)}"


def _bound(bound: float, before: float) -> str:
    return f"over {_length(before)}" if bound == inf else f"to {_length(bound)}"


def _length(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else length(seconds).replace(".0 s", " s")


def _users(stats: Stats) -> dict[str, list[list[Any]]]:
    """The users with the most permits, by kind: names, permits, and the share of the first."""
    found: dict[str, list[list[Any]]] = {}
    for kind in ("task", "key", "queue"):
        some = [user for user in stats.users if user.kind == kind][:MOST_USERS]
        if some:
            most = some[0].permits or 1.0
            found[kind] = [
                [plain(user.name), f"{user.permits:,.0f}", round(100 * user.permits / most)] for user in some
            ]
    return found
